"""`poimen audit tail | query | show | export | stats | rebuild-index` against a real server and a real log."""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from poimen_tasks import AuditEvent, Poimen
from poimen_tasks.cli import main
from tests import nursery
from tests.auditing import seal
from tests.conftest import ROOT, eventually

Run = Callable[..., Result]
LONG = "a long word, \n" * 20_000


@pytest.fixture
def poimen(redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Poimen]:
    """An app with seven recorded events; the last one is not sealed yet."""
    made = Poimen("teller", redis_url=redis_url, namespace=namespace, data_dir=tmp_path / "data")
    made.audit.record_many(
        AuditEvent(
            event_id=f"e{at}", event_type="note", actor=("ada", "bob")[at % 2], action=f"number {at}", workflow="w",
            task=f"T{at}", metadata={"at": at}, error="=cmd\n\x1b[31m" if at == 4 else None,
            reasoning=LONG if at == 5 else "",
        )
        for at in range(6)
    )  # fmt: skip
    seal(made)
    made.audit.record("note", action="unsealed", actor="eve")
    yield made
    made.close()


@pytest.fixture
def env(redis_url: str, namespace: str, tmp_path: Path) -> dict[str, str]:
    """The environment that names this server, namespace and directory."""
    return {"POIMEN_REDIS_URL": redis_url, "POIMEN_NAMESPACE": namespace, "POIMEN_DATA_DIR": str(tmp_path / "data")}


@pytest.fixture
def run(poimen: Poimen, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `poimen audit …` with the settings of the environment; the events are there."""
    assert poimen.audit
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(main, ["audit", *words], prog_name="poimen")

    return invoke


def actions(found: Result) -> list[str]:
    return [event["action"] for event in json.loads(found.stdout)["events"]]


def test_query(run: Run) -> None:
    """The events that all filters leave, oldest or newest first, page by page, and its source (promise A5)."""
    assert actions(run("query", "--json")) == [*(f"number {at}" for at in range(6)), "unsealed"]
    assert actions(run("query", "--json", "--actor", "ada", "--actor", "eve", "--newest")) == [
        "unsealed", "number 4", "number 2", "number 0",
    ]  # fmt: skip
    page = json.loads(run("query", "--json", "--limit", "2", "--workflow", "w", "--since", "1h").stdout)
    assert ([event["sequence"] for event in page["events"]], page["source"], page["more"]) == ([0, 1], "index", True)
    assert actions(run("query", "--json", "--limit", "2", "--after", page["cursor"])) == ["number 2", "number 3"]
    assert (run("query", "--count").stdout, run("query", "--count", "--task", "T3").stdout) == ("7\n", "1\n")
    assert json.loads(run("query", "--count", "--json", "--text", "NUMBER").stdout) == {"count": 6}
    assert actions(run("query", "--json", "--until", "1h")) == []
    shown = run("query", "--task", "T4")
    assert "from the sealed log, by its index, and from the stream" in shown.stderr
    assert "number 4 | =cmd  [31m" in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.parametrize("words", [("query",), ("query", "--count"), ("tail",), ("export",)])
def test_a_name_that_is_not_in_the_log(run: Run, words: tuple[str, ...]) -> None:
    """An empty answer to a filter with a name that no event has is told, with the names that there are."""
    found = run(
        *words, "--status", "succes", "--actor", "ade", "--type", "note", "--workflow", "v", "--task", "no.such"
    )
    assert found.exit_code == 0, found.output
    notes = [line for line in found.stderr.splitlines() if line.startswith("note: ")]
    assert notes == [
        "note: no event has actor 'ade'; there are: ada, bob, eve",
        "note: no event has status 'succes'; there are: success",
        "note: no event is about workflow 'v'",
        "note: no event is about task 'no.such'",
    ]
    assert "note: " not in run(*words, "--actor", "ada", "--status", "success").stderr
    # Each name is in the log, though not together; the unsealed event has one of them.
    assert "note: " not in run(*words, "--actor", "eve", "--workflow", "w").stderr


def test_many_names_that_are_in_the_log(run: Run, poimen: Poimen) -> None:
    """Of many names the near ones are told first, and how many more there are."""
    poimen.audit.record_many(AuditEvent(event_type=f"kind-{at}", action="x", actor="ada") for at in range(30))
    (note,) = [line for line in run("query", "--type", "nota").stderr.splitlines() if line.startswith("note: ")]
    assert note.startswith("note: no event has type 'nota'; there are: note, ")
    assert note.endswith(", and 21 more")


def test_only_the_stream(run: Run, poimen: Poimen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no sealed log, what is not sealed is told, and that it is no more than that."""
    assert poimen.audit
    monkeypatch.setenv("POIMEN_AUDIT_DIR", str(tmp_path / "elsewhere"))
    found = run("query")
    assert "1 event, from the stream in Redis: what is not sealed yet" in found.stderr
    assert "unsealed" in found.stdout


def test_the_log_alone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--log` reads a directory without an app and without Redis."""
    monkeypatch.setenv("POIMEN_REDIS_URL", "redis://127.0.0.1:1/0")
    found = run("query", "--json", "--log", str(tmp_path / "data" / "audit"))
    assert (len(actions(found)), json.loads(found.stdout)["source"]) == (6, "index")
    nowhere = run("query", "--log", str(tmp_path / "nowhere"))
    assert (nowhere.exit_code, nowhere.stderr.count("\n")) == (1, 1)
    assert "there is no audit log in this directory" in nowhere.stderr


def test_a_pipe_cuts_nothing(run: Run, poimen: Poimen) -> None:
    """Whatever its names and words, a line in a pipe is whole."""
    names = {"event_type": "k" * 128, "actor": "a" * 128, "workflow": "w" * 128, "task": "t" * 250}
    poimen.audit.record(action="x" * 400, **names)
    (line,) = run("query", "--actor", "a" * 128).stdout.splitlines()[1:]
    assert line.endswith("x" * 400)
    assert all(name in line for name in names.values())


@pytest.mark.parametrize("columns", [80, 40, 100, 149, 150])
def test_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """No line is longer than the terminal is wide; number, time, status, words are there; types on 100 columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    title, *lines = run("query").stdout.splitlines()
    assert max(map(len, (title, *lines))) <= columns
    assert (len(lines), "ACTOR" in title, lines[0].split()[0]) == (7, columns >= 150, "0")
    assert ("TYPE" in title) == (columns >= 100)
    if columns >= 80:
        assert title.split()[-1] == "WHAT"
        assert lines[0].endswith("  number 0")


def test_tail(run: Run) -> None:
    """The newest events, the last one at the end."""
    lines = run("tail", "-n", "2").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["LINE", "5", "-"]
    found = [json.loads(line) for line in run("tail", "-n", "2", "--json", "--actor", "ada").stdout.splitlines()]
    assert [event["event_id"] for event in found] == ["e2", "e4"]
    assert run("tail", "-n", "0", "--json").stdout == ""


def test_show(run: Run) -> None:
    """One event in full, by its id or its line, with what is kept by digest."""
    assert json.loads(run("show", "--json", "e3").stdout)["metadata"] == {"at": 3}
    assert json.loads(run("show", "--json", "2").stdout)["event_id"] == "e2"
    assert json.loads(run("show", "--json", "e5").stdout)["reasoning"] == LONG
    shown = run("show", "e4")
    assert "error       =cmd\n            [31m" in shown.stdout
    missing = run("show", "e99\x1b[0m")
    assert (missing.exit_code, missing.stderr) == (1, "error: the audit log has no event 'e99\\x1b[0m'\n")
    last = json.loads(run("stats", "--json").stdout)["sealed"] - 1
    assert json.loads(run("show", "--json", str(last)).stdout)["event_type"]
    beyond = run("show", str(last + 1))
    assert beyond.stderr == f"error: the audit log has no event '{last + 1}', and its sealed lines are 0 to {last}\n"


@pytest.mark.parametrize("words", [[], ["-o"]])
def test_export_jsonl(run: Run, tmp_path: Path, words: list[str]) -> None:
    """A line an event, to stdout or into a file; with `--full`, payloads stand in it."""
    target = tmp_path / "out.jsonl"
    found = run("export", "--full", *words, *([str(target)] if words else []))
    text = target.read_text() if words else found.stdout
    events = [json.loads(line) for line in text.splitlines()]
    assert [event["event_id"] for event in events][:6] == [f"e{at}" for at in range(6)]
    assert (events[5]["reasoning"], "content" in events[5]) == (LONG, False)
    assert "7 events exported" in found.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".out")] == []


def test_export_csv(run: Run) -> None:
    """A row an event; what is nested is JSON in a cell, and a cell keeps its lines."""
    rows = list(csv.DictReader(io.StringIO(run("export", "--format", "csv", "--workflow", "w").stdout, newline="")))
    assert [row["sequence"] for row in rows] == [str(at) for at in range(6)]
    assert (json.loads(rows[3]["metadata"]), rows[3]["error"], rows[4]["error"]) == ({"at": 3}, "", "=cmd\n\x1b[31m")
    assert json.loads(rows[5]["content"])["reasoning"]["bytes"] == len(LONG)


def test_export_parquet(run: Run, tmp_path: Path) -> None:
    """Typed columns: numbers, moments of UTC, texts."""
    parquet = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "out.parquet"
    assert run("export", "--format", "parquet", "-o", str(target)).exit_code == 0
    found = parquet.read_table(target).to_pylist()
    assert [row["sequence"] for row in found] == [0, 1, 2, 3, 4, 5, None]
    assert found[0]["timestamp"].utcoffset().total_seconds() == 0
    assert json.loads(found[2]["metadata"]) == {"at": 2}
    assert run("export", "--format", "parquet").exit_code == 2


def test_a_failed_export_leaves_nothing(run: Run, tmp_path: Path) -> None:
    """A file that cannot be written is an error in one line, and a half of one is never there."""
    missing = run("export", "-o", str(tmp_path / "no" / "out.jsonl"))
    assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
    (segment,) = (tmp_path / "data" / "audit" / "segments").iterdir()
    segment.chmod(0o644)
    segment.write_bytes(segment.read_bytes().replace(b"number 3", b"number 4"))
    broken = run("export", "-o", str(tmp_path / "out.jsonl"))
    assert (broken.exit_code, "line 3" in broken.stderr) == (1, True)
    assert not list(tmp_path.glob("*out.jsonl*"))


def test_stats(run: Run) -> None:
    """What the log holds, and what waits."""
    found = json.loads(run("stats", "--json").stdout)
    assert (found["sealed"], found["waiting"], found["actors"]) == (6, 1, {"ada": 3, "bob": 3})
    shown = run("stats").stdout
    assert "sealed      6 lines in 1 segment" in shown
    assert "waiting     1 entry is not sealed" in shown


def test_rebuild_index(run: Run, tmp_path: Path) -> None:
    """The index is made again from the lines."""
    (tmp_path / "data" / "audit" / "index.sqlite").write_bytes(b"rubbish" * 1000)
    assert json.loads(run("rebuild-index", "--json").stdout)["lines"] == 6
    assert actions(run("query", "--json", "--task", "T2")) == ["number 2"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["query", "--since", "2025-11-30", "--until", "2025-11-29"], 1, "since: expected a moment before until"),
        (["query", "--since", "999999d"], 2, "'999999d' is before the year 1"),
        (["query", "--since", "yesterday"], 2, "'yesterday' is no moment; use ISO 8601"),
        (["query", "--colour", "red"], 2, "No such option"),
        (["query", "--limit", "0"], 2, "--limit"),
        (["query", "--workflow", "a\nb"], 1, "workflow: expected"),
        (["query", "--text", ""], 2, "it is empty"),
        (["query", "--after", "x"], 1, "after: expected"),
        (["query", "--follow", "--newest"], 2, "--follow goes with"),
        (["export", "--format", "xml"], 2, "xml"),
    ],
)
def test_misuse(run: Run, words: list[str], code: int, said: str) -> None:
    """Each mistake is told in words, with exit code 1 or 2."""
    found = run(*words)
    assert (found.exit_code, said in found.stderr) == (code, True), found.stderr


def test_follow(poimen: Poimen, env: dict[str, str], tmp_path: Path) -> None:
    """`--follow` prints events as they come, sealed meanwhile or not, until Ctrl-C."""
    log = tmp_path / "follow.log"
    with log.open("wb") as out:
        process = nursery.start(
            ["poimen_tasks.cli", "audit", "query", "--follow", "--json", "--type", "note"],
            env={**os.environ, **env, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=out,
        )

    def told() -> list[str]:
        return [json.loads(line)["action"] for line in log.read_text().splitlines()]

    try:
        eventually(lambda: len(told()) == 7, 30)
        seal(poimen)
        poimen.audit.record("note", action="later", actor="ada")
        eventually(lambda: told()[-1] == "later")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
    assert told() == [*(f"number {at}" for at in range(6)), "unsealed", "later"]


def test_an_app(
    poimen: Poimen, redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `-A` the settings are the app's."""
    assert poimen.audit
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.syspath_prepend(tmp_path)
    name = f"shop_{secrets.token_hex(4)}"
    how = f"Poimen('shop', redis_url={redis_url!r}, namespace={namespace!r}, data_dir={str(tmp_path / 'data')!r})"
    (tmp_path / f"{name}.py").write_text(f"from poimen_tasks import Poimen\npoimen = {how}\n")
    found = CliRunner().invoke(main, ["audit", "query", "-A", name, "--json"], prog_name="poimen")
    assert len(actions(found)) == 7


@pytest.mark.parametrize("words", [("audit", "seal"), ("health",), ("drain",)])
def test_without_a_server_or_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    """Commands that find no Redis say how one is started, also where no app was given."""
    monkeypatch.chdir(tmp_path)
    for name in ("POIMEN_REDIS_URL", "POIMEN_BROKER_URL", "POIMEN_APP", "POIMEN_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(main, list(words), prog_name="poimen")
    assert (done.exit_code, "or start a server with `poimen up -A APP`" in done.stderr) == (1, True)
