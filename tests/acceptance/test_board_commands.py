"""`poimen board` and `poimen tracker` against a real server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from poimen_tasks import BoardTask, Poimen, board
from poimen_tasks.cli import main

Run = Callable[..., Result]
VALID = """# Release

| ID | Scope | Status | Branch | Verification |
|---|---|---|---|---|
| T1 | parse | completed | w/parse | make test |
| T2 | render | in progress |  |  |
"""
BROKEN = VALID.replace("# Release\n\n", "").replace("completed", "done")


@pytest.fixture
def poimen(redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Poimen]:
    """An app whose settings the environment has: the commands need none of their own."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("POIMEN_REDIS_URL", redis_url)
    monkeypatch.setenv("POIMEN_NAMESPACE", namespace)
    monkeypatch.chdir(tmp_path)
    made = Poimen("filler", redis_url=redis_url, namespace=namespace)
    yield made
    made.close()


@pytest.fixture
def run(poimen: Poimen) -> Run:
    """Run a command line; returns the result."""

    def invoke(*words: str, text: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, words, input=text, prog_name="poimen")

    return invoke


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A board on disk."""
    path = tmp_path / "board.md"
    path.write_text(VALID, encoding="utf-8")
    return path


def test_check(run: Run, file: Path) -> None:
    """A valid board is exit code 0; of another one each fault is told by line, with exit code 1 (promise B1)."""
    good = run("board", "check", "board.md")
    assert (good.exit_code, good.stdout) == (0, "board.md is valid\n")
    assert json.loads(run("board", "check", "board.md", "--json").stdout) == {"valid": True, "problems": []}
    file.write_text(BROKEN, encoding="utf-8")
    bad = run("board", "check", "board.md")
    assert bad.exit_code == 1
    first, second = bad.stdout.splitlines()
    assert first == "board.md:1: no title; expected a line `# ` and some words above the table"
    assert second.startswith("board.md:3: status 'done' is not known; did you mean completed?")
    for words, text in ((("board.md",), None), (("-",), BROKEN)):
        told = run("board", "check", *words, "--json", text=text)
        assert (told.exit_code, json.loads(told.stdout)["valid"]) == (1, False)
        assert [one["line"] for one in json.loads(told.stdout)["problems"]] == [1, 3]


def test_many_faults(run: Run) -> None:
    """Of very many faults a hundred are told, and how many more there are."""
    bad = run("board", "check", "-", text=VALID + "| T |\n" * 250)
    assert (len(bad.stdout.splitlines()), bad.stdout.splitlines()[-1]) == (101, "and 150 more")


def test_what_cannot_be_read(run: Run, tmp_path: Path) -> None:
    """A file that is not there, a directory, and bytes that are no text are each one clear line."""
    for command in ("check", "show", "heal"):
        for name, data, code, said in (
            ("nothing.md", None, 1, "nothing.md: No such file or directory"),
            ("bytes.md", b"# x\n\xff", 1, "bytes.md:2: byte 0xff is no UTF-8"),
            (".", None, 2, "is a directory"),
        ):
            if data is not None:
                (tmp_path / name).write_bytes(data)
            result = run("board", command, name)
            assert (result.exit_code, said in result.stderr) == (code, True), result.stderr


def test_show(run: Run, file: Path) -> None:
    """The tasks are listed; an invalid board is one line that says where to look (promise B2)."""
    shown = run("board", "show", "board.md")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == "Release"
    assert shown.stdout.splitlines()[2].split() == ["T1", "completed", "w/parse", "parse", "make", "test"]
    told = json.loads(run("board", "show", "board.md", "--json", "--status", "In-Progress").stdout)
    assert (told["title"], [task["id"] for task in told["tasks"]]) == ("Release", ["T2"])
    assert "no tasks" in run("board", "show", "board.md", "--status", "failed").stdout
    wrong = run("board", "show", "board.md", "--status", "done")
    assert (wrong.exit_code, "use one of pending, in_progress" in wrong.stderr) == (2, True)
    bad = run("board", "show", "-", text=BROKEN)
    assert bad.exit_code == 1
    assert "-:1: no title" in bad.stderr
    assert "and 1 more; `poimen board check` has all" in bad.stderr


def test_heal(run: Run, poimen: Poimen, file: Path) -> None:
    """The mended board goes to stdout, or with --write into the file; what was done is told (promise B3)."""
    poimen.tracker("release").update("T2", "failed")
    file.write_text(BROKEN, encoding="utf-8")
    healed = board.heal(BROKEN, {"T2": "failed"}, title="Ours")
    words = ("board", "heal", "board.md", "--tracker", "release", "--title", "Ours")
    printed = run(*words)
    assert (printed.exit_code, printed.stdout, file.read_text(encoding="utf-8")) == (0, healed.text, BROKEN)
    assert printed.stderr.splitlines() == [str(change) for change in healed.changes]
    told = json.loads(run(*words, "--json").stdout)
    assert (told["text"], told["changed"], told["written"]) == (healed.text, True, False)
    written = run(*words, "--write")
    assert (written.exit_code, written.stdout, file.read_text(encoding="utf-8")) == (0, "", healed.text)
    assert written.stderr.splitlines()[-1] == "board.md was written anew"
    file.chmod(0o640)
    before = file.stat()
    again = run(*words, "--write")
    assert (again.exit_code, again.stderr) == (0, "board.md is as it should be\n")
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert run("board", "check", "board.md").exit_code == 0


def test_heal_writes_with_care(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file keeps its rights; one that somebody else wrote meanwhile is left as it is, with nothing beside it."""
    file.write_text(BROKEN, encoding="utf-8")
    file.chmod(0o600)
    assert run("board", "heal", "board.md", "--write").exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(BROKEN, encoding="utf-8")
    heal = board.heal

    def slowly(text: str, *values: object, **options: str) -> board.HealedBoard:
        file.write_text(f"{text}\nby somebody else\n", encoding="utf-8")
        return heal(text, *values, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(board, "heal", slowly)
    lost = run("board", "heal", "board.md", "--write")
    assert (lost.exit_code, "was changed by somebody else meanwhile" in lost.stderr) == (1, True)
    assert file.read_text(encoding="utf-8").endswith("by somebody else\n")
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == ["board.md"]


def test_heal_keeps_line_endings(run: Run, file: Path) -> None:
    """Bytes that are not mended stay: line endings and a byte order mark too."""
    data = ("\ufeff" + VALID).replace("\n", "\r\n").encode()
    file.write_bytes(data)
    assert run("board", "heal", "board.md").stdout_bytes == data
    assert run("board", "heal", "-", text=data).stdout_bytes == data


def test_heal_without_what_it_needs(run: Run, file: Path) -> None:
    """Without a tracker no server is asked; one that tracks nothing is refused, and stdin cannot be written to."""
    assert run("board", "heal", "board.md").exit_code == 0
    missing = run("board", "heal", "board.md", "--tracker", "nope")
    assert (missing.exit_code, "tracker 'nope' tracks no task" in missing.stderr) == (1, True)
    misused = run("board", "heal", "-", "--write", text=VALID)
    assert (misused.exit_code, "--write needs a FILE" in misused.stderr) == (2, True)


def test_tracker(run: Run, poimen: Poimen, file: Path) -> None:
    """A board is loaded, tasks are updated, shown, removed, and the tracker is cleared (promise B4)."""
    assert run("tracker", "list").stdout == "nothing is tracked\n"
    nothing = run("tracker", "show", "releese")
    assert nothing.stdout == "nothing is tracked in releese; `poimen tracker list` has the trackers\n"
    assert run("tracker", "load", "release", "board.md").stdout == "2 tasks in release, 2 changed\n"
    assert json.loads(run("tracker", "load", "release", "board.md", "--json").stdout) == {"tasks": 2, "changed": 0}
    updated = json.loads(
        run(
            "tracker", "update", "release", "T2", "--status", "failed", "--actor", "ada", "--reason", "no", "--json"
        ).stdout
    )
    assert (updated["status"], updated["version"], updated["actor"], updated["scope"]) == ("failed", 3, "ada", "render")
    said = run("tracker", "update", "release", "T3", "--scope", "more", "--branch", "b", "--verification", "v")
    assert said.stdout == "task T3 of release is pending (version 4)\n"
    conflict = run("tracker", "update", "release", "T3", "--status", "failed", "--expected", "1")
    assert (conflict.exit_code, "expected version 1, it has version 4" in conflict.stderr) == (1, True)
    shown = json.loads(run("tracker", "show", "release", "--json").stdout)
    assert [task["id"] for task in shown["tasks"]] == ["T1", "T2", "T3"]
    assert (shown["stats"]["total"], shown["stats"]["completed"]) == (3, 1)
    assert "render" in run("tracker", "show", "release", "--status", "failed").stdout
    assert "no tasks are blocked" in run("tracker", "show", "release", "--status", "blocked").stdout
    listed = run("tracker", "list").stdout.splitlines()
    assert listed[1].split()[:3] == ["release", "1/3", "33%"]
    assert json.loads(run("tracker", "list", "--json").stdout)["trackers"]["release"]["remaining"] == 1
    assert run("tracker", "remove", "release", "T3").stdout == "removed task T3 from release\n"
    gone = run("tracker", "remove", "release", "T3")
    assert (gone.exit_code, "has no task 'T3'" in gone.stderr) == (1, True)
    assert poimen.audit.query(type="tracker.updated", actor="ada")[0].reasoning == "no"


def test_clearing_asks_people_only(run: Run, poimen: Poimen) -> None:
    """`clear` asks first; with `--json` there is nobody to ask, so `--yes` has to be given."""
    poimen.tracker("release").update_many([BoardTask(id="T1"), BoardTask(id="T2")])
    refused = run("tracker", "clear", "release", text="n\n")
    assert (refused.exit_code, "forget all 2 tasks of tracker 'release'?" in refused.output) == (1, True)
    assert run("tracker", "clear", "release", "--json").exit_code == 2
    assert json.loads(run("tracker", "clear", "release", "--json", "--yes").stdout) == {"removed": 2}
    assert run("tracker", "clear", "release", "--yes").stdout == "cleared release: 0 tasks\n"


def test_heal_what_is_no_file(run: Run, file: Path) -> None:
    """A pipe is not written to, nor waited for; a name with control characters is told on one line without them."""
    os.mkfifo(file.with_name("pipe"))
    misused = run("board", "heal", "pipe", "--write")
    assert (misused.exit_code, "--write needs a FILE" in misused.stderr) == (2, True)
    name = "a\x1b[31m\nb.md"
    file.with_name(name).write_text(f"\ufeff{VALID}|")
    said = run("board", "heal", name, "--write")
    assert (said.exit_code, said.stderr.splitlines()[-1]) == (0, "a [31m b.md was written anew")
    assert run("board", "heal", name, "--write").stderr == "a [31m b.md is as it should be\n"
    assert run("board", "check", name).stdout == "a [31m b.md is valid\n"
