"""Commands whose directory is none: one line says what it is, and which setting or option names another."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from poimen_tasks.cli import main
from poimen_tasks.errors import SettingsError
from poimen_tasks.store.server import EmbeddedServer

Run = Callable[..., Result]
AUDIT = [["seal", "--once"], ["query"], ["tail"], ["stats"], ["verify"], ["prove", "0"], ["rebuild-index"]]


@pytest.fixture
def run(redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command with the settings of the environment."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("POIMEN_REDIS_URL", redis_url)
    monkeypatch.setenv("POIMEN_NAMESPACE", namespace)
    monkeypatch.setenv("POIMEN_DATA_DIR", str(tmp_path / "data"))
    return lambda *words: CliRunner().invoke(main, words, prog_name="poimen")


@pytest.fixture(params=["file", "link"])
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A place that is no directory, and what is said of it."""
    place = tmp_path / request.param
    if request.param == "file":
        place.touch()
        return place, f"'{place}' is a file, not a directory"
    place.symlink_to(tmp_path / "nowhere")
    return place, f"'{place}' is a symbolic link to '{tmp_path / 'nowhere'}', which is not there"


@pytest.mark.parametrize("words", AUDIT, ids=lambda words: words[0])
def test_audit_dir(run: Run, monkeypatch: pytest.MonkeyPatch, bad: tuple[Path, str], words: list[str]) -> None:
    """Every command of the audit log names the place, what it is, and the setting; it is not said to be a bad disk."""
    monkeypatch.setenv("POIMEN_AUDIT_DIR", str(bad[0]))
    found = run("audit", *words)
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert f"{bad[1]}; set POIMEN_AUDIT_DIR to the log's directory" in found.stderr
    assert "disk" not in found.stderr


@pytest.mark.parametrize("words", AUDIT[1:], ids=lambda words: words[0])
def test_log(run: Run, tmp_path: Path, words: list[str]) -> None:
    """Where `--log` named it, that option is named."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    found = run("audit", *words, "--log", str(tmp_path / "link"))
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert "which is not there; give --log the directory of an audit log" in found.stderr


def test_health(run: Run, monkeypatch: pytest.MonkeyPatch, bad: tuple[Path, str]) -> None:
    """Health warns of it; it is no error, since the log may be on another machine."""
    monkeypatch.setenv("POIMEN_AUDIT_DIR", str(bad[0]))
    found = run("health")
    assert found.exit_code == 0
    assert f"no audit log can be read there: {bad[1]}" in found.stdout
    monkeypatch.delenv("POIMEN_AUDIT_DIR")
    assert "no audit log can be read there" not in run("health").stdout


def test_data_dir(run: Run, monkeypatch: pytest.MonkeyPatch, bad: tuple[Path, str]) -> None:
    """A data directory that is none is told by the commands of snapshots, and by the private server."""
    monkeypatch.setenv("POIMEN_DATA_DIR", str(bad[0]))
    for words in (["snapshot", "list"], ["snapshot", "show", "w"], ["snapshot", "delete", "w", "--yes"]):
        found = run(*words)
        assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
        assert f"{bad[1]}; set POIMEN_DATA_DIR, or --dir, to another" in found.stderr
    with pytest.raises(SettingsError, match=r"no server can keep its data there: .*; set POIMEN_DATA_DIR, or --dir"):
        EmbeddedServer(bad[0]).start()
    monkeypatch.delenv("POIMEN_REDIS_URL")
    found = run("up")
    assert (found.exit_code, found.stderr) == (
        1, f"error: no server can keep its data there: {bad[1]}; set POIMEN_DATA_DIR, or --dir, to another\n",
    )  # fmt: skip
