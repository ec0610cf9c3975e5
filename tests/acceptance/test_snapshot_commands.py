"""`poimen snapshot` against a real server: take, list, show, restore and delete, for people and for programs."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from poimen_tasks import Poimen
from poimen_tasks.cli import main

Run = Callable[..., Result]


def _noop(value: Any) -> None:
    """Never called."""


@pytest.fixture
def poimen(
    redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Poimen, Run]]:
    """A Poimen with a batch of three, paused, and its commands."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("POIMEN_DATA_DIR", str(tmp_path / "data"))
    name = f"shop_{secrets.token_hex(4)}"
    options = f"redis_url={redis_url!r}, namespace=__import__('os').environ.get('SPACE', {namespace!r})"
    text = f"from poimen_tasks import Poimen\npoimen = Poimen('shop', {options})\n"
    (tmp_path / f"{name}.py").write_text(f"{text}@poimen.task(name='shop.noop', shared=False)\ndef noop(value): pass\n")
    made = Poimen("filler", redis_url=redis_url, namespace=namespace)
    noop = made.task(_noop, name="shop.noop", shared=False)
    made.pause(workflow="wf", reason="new host", actor="ann")
    made.dispatch(made.map(noop, range(3)), workflow="wf", batch_id="mine")

    def run(command: str, *words: str) -> Result:
        sys.modules.pop(name, None)  # each command is a process of its own, with its own settings
        return CliRunner().invoke(main, ["snapshot", command, "-A", name, *words], prog_name="poimen")

    yield made, run
    made.close()


def told(result: Result) -> Any:
    """The JSON of a command that succeeded."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_create_and_look(poimen: tuple[Poimen, Run]) -> None:
    """What was taken is listed and shown: who, why, since when it is paused and by whom, what is left to do."""
    _, run = poimen
    assert "no snapshots in" in run("list").stdout
    made = told(run("create", "wf", "--reason", "before the upgrade", "--actor", "bob", "--json"))
    assert (made["workflow"], made["pending"], made["actor"]) == ("wf", 3, "bob")
    again = run("create", "wf")
    assert again.stdout.startswith("took workflow wf: 1 batch, 3 items (snapshot ")
    listed = told(run("list", "--json"))
    assert [one["workflow"] for one in listed["snapshots"]] == ["wf"]
    assert (listed["stats"]["count"], listed["stats"]["corrupt"]) == (2, 0)
    assert [one["id"] for one in told(run("list", "--all", "--json"))["snapshots"]][1] == made["id"]
    assert "wf" in run("list").stdout
    assert told(run("show", "wf", "--generation", "1", "--json"))["id"] == made["id"]
    shown = run("show", "wf", "--generation", "1").stdout
    for words in (
        "by bob",
        "before the upgrade",
        "mine default: 0 of 3, open",
        "UTC by ann: new host",
        "workflow wf since 20",
    ):
        assert words in shown


def test_nothing_to_take(poimen: tuple[Poimen, Run]) -> None:
    """A workflow without a batch, as a mistyped one, is no snapshot but exit code 1."""
    _, run = poimen
    refused = run("create", "nosuch")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == "error: workflow 'nosuch' has no batch in this store, so there is nothing to take\n"
    assert json.loads(run("create", "nosuch", "--json").stdout)["error"]["type"] == "NoBatch"
    assert "no snapshots in" in run("list").stdout


def test_totals_of_several_batches(poimen: tuple[Poimen, Run]) -> None:
    """Of several batches `show` tells the items of all, as `list` does, and of which stage the ids are."""
    made, run = poimen
    made.dispatch(made.map("shop.noop", range(6)), workflow="wf", stage="second", batch_id="more")
    made.batch("mine").cancel(reason="x", actor="ann")
    run("create", "wf")
    lines = run("show", "wf").stdout.splitlines()
    assert ["items", "9: 0 completed, 6 pending, 0 failed, 3 cancelled"] in [line.split(None, 1) for line in lines]
    assert any(line.startswith("pending") and "6 of stage second (0, 1, 2, 3, 4, ...)" in line for line in lines)


def test_pauses_for_programs(poimen: tuple[Poimen, Run]) -> None:
    """With --json the pauses of a snapshot look as `poimen pauses --json` shows them."""
    made, run = poimen
    state = made.pauses.state("wf")
    assert state is not None
    (pause,) = told(run("create", "wf", "--json"))["pauses"]
    assert pause == {**state.to_dict(), "held": 0}
    assert (pause["scope"], pause["paused"], pause["actor"]) == ({"kind": "workflow", "id": "wf"}, True, "ann")
    assert told(run("show", "wf", "--json"))["pauses"] == [pause]
    assert told(run("list", "--json"))["snapshots"][0]["pauses"] == [pause]


def moments(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All parts of a JSON value that are moments by their names."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from moments(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from moments(part, name)
    elif name.endswith("_at") or name in {"timestamp", "oldest", "newest", "first", "last"}:
        yield name, value


def test_moments(poimen: tuple[Poimen, Run], tmp_path: Path) -> None:
    """People read moments in one form, programs as ISO 8601 with the offset: in every command that tells any."""
    made, run = poimen
    made.dispatch(made.map("shop.noop", range(2)), workflow="wf", stage="second")
    made.audit.record("note", action="noted", actor="ann")
    run("create", "wf")
    env = {"POIMEN_REDIS_URL": made.redis_url, "POIMEN_NAMESPACE": made.settings.namespace}
    (app,) = (path.stem for path in tmp_path.glob("shop_*.py"))
    words = {
        "snapshot show": ["snapshot", "show", "wf"], "snapshot list": ["snapshot", "list"], "status": ["status"],
        "batch": ["status", "mine"], "pauses": ["pauses"], "query": ["audit", "query"], "stats": ["audit", "stats"],
        "pause": ["pause", "--queue", "q", "--grace", "5"],
    }  # fmt: skip
    told_by, shown = set[str](), ""
    for name, command in words.items():
        found = CliRunner(env=env).invoke(main, ["-A", app, *command, "--json"], prog_name="poimen")
        assert found.exit_code == 0, found.output
        for part, value in moments(json.loads(found.stdout)):
            if value is not None:
                told_by.add(name)
                assert datetime.fromisoformat(value).utcoffset() == timedelta(0), (name, part, value)
        shown += CliRunner(env=env | {"COLUMNS": "200"}).invoke(main, ["-A", app, *command]).stdout
    assert told_by == set(words)
    years = [match.end() for match in re.finditer(r"\b20\d\d-", shown)]
    assert len(years) > len(words)
    assert all(re.match(r"\d\d-\d\d \d\d:\d\d:\d\d( UTC| )", shown[at:]) for at in years)
    assert not re.search(r"\d\d:\d\d:\d\d[.Z]", shown)


def test_looking_without_an_app(poimen: tuple[Poimen, Run], namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`list`, `show` and `delete` need no task: without an app the settings are those of the environment."""
    _, run = poimen
    run("create", "wf")
    monkeypatch.setenv("POIMEN_NAMESPACE", namespace)

    def bare(*words: str) -> Any:
        return told(CliRunner().invoke(main, ["snapshot", *words, "--json"], prog_name="poimen"))

    assert [one["workflow"] for one in bare("list")["snapshots"]] == ["wf"]
    assert bare("show", "wf")["pending"] == 3
    assert bare("delete", "wf", "--yes") == {"deleted": 1}
    assert CliRunner().invoke(main, ["snapshot", "create", "wf"], prog_name="poimen").exit_code == 2


def test_restore(poimen: tuple[Poimen, Run], namespace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is restored once, into a store that does not know it, paused or going on; each refusal is one line, exit 1."""
    _, run = poimen

    def move_to(other: str) -> None:
        """Another namespace knows nothing of it, and has its files."""
        snapshots = tmp_path / "data" / "snapshots"
        shutil.copytree(snapshots / namespace, snapshots / other)
        monkeypatch.setenv("SPACE", other)

    run("create", "wf")
    live = run("restore", "wf")
    assert (live.exit_code, live.stdout) == (1, "")
    assert live.stderr.startswith("error: batch 'mine' is there already")
    move_to(f"{namespace}x")
    assert run("restore", "wf", "--paused").stdout.rstrip().endswith("it is paused")
    assert "was restored here already" in run("restore", "wf").stderr
    failed = json.loads(run("restore", "wf", "--json").stdout)
    assert failed["error"]["type"] == "SnapshotConflict"
    move_to(f"{namespace}y")
    assert told(run("restore", "wf", "--json"))["resume_success"] is True
    assert "resumed" in run("show", "wf").stdout
    move_to(f"{namespace}z")
    assert run("restore", "wf").stdout.rstrip().endswith("it goes on")


def test_delete_and_what_is_not_there(poimen: tuple[Poimen, Run], tmp_path: Path) -> None:
    """What is not there is exit code 1 by name, as is a file that was altered; `delete` removes every one of them.

    It asks first; with `--json` there is nobody to ask, so `--yes` has to be given.
    """
    _, run = poimen
    for command in (["show"], ["restore"], ["delete", "--yes"]):
        missing = run(*command, "nobody")
        assert (missing.exit_code, "workflow 'nobody' has no snapshot" in missing.stderr) == (1, True)
    assert "expected 1-128 of" in run("show", "../x").stderr
    run("create", "wf")
    (path,) = (tmp_path / "data" / "snapshots").glob("*/*.snapshot")
    path.write_bytes(path.read_bytes()[:-1])
    assert "its checksum is wrong" in run("show", "wf").stderr
    assert told(run("list", "--json"))["stats"]["corrupt"] == 1
    refused, asked = run("delete", "wf", "--json"), run("delete", "wf")
    assert (refused.exit_code, "give --yes too" in refused.stderr) == (2, True)
    assert (asked.exit_code, "remove every snapshot of workflow 'wf'" in asked.stderr) == (1, True)
    assert path.exists()
    assert told(run("delete", "wf", "--json", "--yes")) == {"deleted": 1}
    assert list(path.parent.glob("*.snapshot*")) == []
