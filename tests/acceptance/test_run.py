"""`poimen run` with real workers: files and pipes of calls, and what becomes of them when the run is cut short."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from poimen_tasks import BatchState
from poimen_tasks.cli import main
from poimen_tasks.store.server import EmbeddedServer
from tests import nursery
from tests.acceptance.conftest import APP
from tests.conftest import ROOT, eventually

pytestmark = pytest.mark.usefixtures("lanes")

Calls = Callable[..., Path]
Here = Callable[..., Result]
Start = Callable[..., "Process"]


def task(name: str, *args: Any, **more: Any) -> dict[str, Any]:
    """A call of one of the shop's tasks."""
    return {"task": f"{APP}.{name}", "args": list(args), **more}


def jsonl(rows: Iterable[dict[str, Any] | str]) -> str:
    """Lines of JSON."""
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def ids(lines: str) -> list[str]:
    """The item ids of whole lines, which all have to be outcomes."""
    assert lines == "" or lines.endswith("\n")
    return [json.loads(line)["item_id"] for line in lines.splitlines()]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    """Write a file of calls."""

    def write(*rows: dict[str, Any] | str) -> Path:
        path = tmp_path / "calls.jsonl"
        path.write_text(jsonl(rows))
        return path

    return write


@pytest.fixture
def here(shop: ModuleType) -> Here:
    """Run `poimen run` in this process, to its end."""

    def run(*words: str | Path) -> Result:
        return CliRunner().invoke(main, ["run", "-A", APP, *map(str, words)], prog_name="poimen")

    return run


class Process:
    """A `poimen run` in a process of its own, which reads a pipe unless it is given a file."""

    def __init__(self, env: dict[str, str], directory: Path, *words: str | Path) -> None:
        self.err = directory / f"err-{secrets.token_hex(4)}"
        with self.err.open("wb") as err:
            self.process = nursery.start(
                ["poimen_tasks.cli", "run", "-A", APP, *map(str, words)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "USER": "ada", **env},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )

    def said(self) -> str:
        """What it said so far."""
        return self.err.read_text()

    def write(self, text: str) -> None:
        """Into its pipe."""
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        """Wait for its end; the exit code, and what it printed."""
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode()

    def batch_id(self) -> str:
        """The batch that it told of."""
        eventually(lambda: self.said().startswith("batch "))
        return self.said().split()[1]


@pytest.fixture
def start(module_env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start runs; none is left behind."""
    started: list[Process] = []

    def begin(*words: str | Path) -> Process:
        started.append(Process(module_env, tmp_path, *words))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()


# ------------------------------------------------------------------------------------------- to the end
def test_a_file_of_calls(shop: ModuleType, here: Here, calls: Calls) -> None:
    """Each call runs and its outcome is a line on stdout, nothing else; exit code 0 when all succeeded (promise D1)."""
    path = calls(
        task("add", 1, 2, id="sum"),
        "",
        task("echo", 1, kwargs={"a": None}),
        task("add", 5, 6, tags=["x"], task_id="T1"),
    )
    batch_id = f"b-{secrets.token_hex(4)}"
    done = here(path, "--batch-id", batch_id, "--workflow", "w1", "--stage", "s1", "--concurrency", "all")
    assert done.exit_code == 0, done.stderr
    rows = {row["item_id"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: (row["status"], row["result"]) for name, row in rows.items()} == {
        "sum": ("succeeded", 3),
        "1": ("succeeded", [[1], {"a": None}]),
        "2": ("succeeded", 11),
    }
    fields = {"error", "started_at", "finished_at", "duration", "queue_wait", "attempts", "worker", "cached", "cursor"}
    assert all(fields <= row.keys() for row in rows.values())
    assert f"batch {batch_id} runs the 3 calls of {path}" in done.stderr
    assert "3 of 3 items succeeded" in done.stderr
    status = shop.poimen.batch(batch_id).status()
    assert (status.workflow, status.stage, status.concurrency) == ("w1", "s1", None)


def test_failures_are_counted(here: Here, calls: Calls) -> None:
    """Calls that fail have their outcomes too; exit code 1, and stderr says how many."""
    done = here(calls(*(task("odd_fails", n) for n in range(5))))
    assert (done.exit_code, "3 of 5 items succeeded, 2 failed" in done.stderr) == (1, True), done.stderr
    errors = {row["item_id"]: row["error"] for row in map(json.loads, done.stdout.splitlines()) if row["error"]}
    assert {name: (error["type"], error["message"]) for name, error in errors.items()} == {
        "1": ("ValueError", "1 is odd"),
        "3": ("ValueError", "3 is odd"),
    }


def test_what_is_said_for_programs(here: Here, calls: Calls, tmp_path: Path) -> None:
    """With --json each line of stderr is an object with an event; errors too, and stdout has outcomes only."""
    done = here(calls(task("noop", 1)), "--json")
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [row["event"] for row in events][:: len(events) - 1] == ["started", "ended"]
    assert events[-1]["status"]["state"] == "completed"
    assert ids(done.stdout) == ["0"]
    done = here(tmp_path / "calls.jsonl", "--json", "--workflow", "a b")
    assert (done.exit_code, done.stdout) == (2, "")
    assert json.loads(done.stderr.splitlines()[-1])["error"]["type"] == "InvalidId"


def test_nothing_to_do(shop: ModuleType, here: Here, calls: Calls) -> None:
    """A file without calls is done at once, and no batch is made."""
    done = here(calls("", " "), "--batch-id", "none")
    assert (done.exit_code, done.stdout, "nothing to do" in done.stderr) == (0, "", True)
    assert "none" not in [batch.id for batch in shop.poimen.batches()]


def test_a_slow_pipe(start: Start) -> None:
    """Calls run while the pipe is still being written, and their outcomes are printed meanwhile."""
    run = start("-")
    run.write(jsonl(task("noop", n) for n in range(600)))
    early = [run.process.stdout.readline().decode() for _ in range(256)]
    assert run.process.poll() is None
    run.write(jsonl(task("noop", n) for n in range(600, 700)))
    code, late = run.end()
    assert code == 0, run.said()
    assert sorted(map(int, ids("".join(early) + late))) == list(range(700))


# ------------------------------------------------------------------------------------------- bad calls
def test_a_bad_line_in_a_file(shop: ModuleType, here: Here, calls: Calls, tmp_path: Path) -> None:
    """A file is checked whole: a bad line far down leaves nothing written, no batch, no outcome file; exit code 2."""
    path = calls(*(task("noop", n) for n in range(600)), task("nope"))
    done = here(path, "--batch-id", "bad", "-o", tmp_path / "out.jsonl")
    assert (done.exit_code, done.stdout, f"{path} line 601: task" in done.stderr) == (2, "", True), done.stderr
    assert "bad" not in [batch.id for batch in shop.poimen.batches()]
    assert not (tmp_path / "out.jsonl").exists()


def test_a_bad_line_in_a_pipe(shop: ModuleType, start: Start) -> None:
    """A bad line of a pipe cancels what came before it, and every item has its outcome; the error names the line."""
    run = start()
    run.write(jsonl(task("noop", n) for n in range(512)) + "nonsense\n")
    code, out = run.end()
    said = run.said().splitlines()[-1]
    assert (code, "stdin line 513: not JSON" in said, run.batch_id() in said) == (2, True, True), run.said()
    assert "Traceback" not in run.said()
    status = shop.poimen.batch(run.batch_id()).status()
    assert status.state is BatchState.CANCELLED
    assert len(set(ids(out))) == len(ids(out)) == status.total


def test_a_bad_line_at_the_beginning_of_a_pipe(start: Start) -> None:
    """A bad line among the first calls of a pipe leaves nothing written."""
    run = start()
    run.write(jsonl([task("noop", 1), "nonsense"]))
    code, out = run.end()
    assert (code, out, "line 2: not JSON" in run.said(), "nothing was dispatched" in run.said()) == (2, "", True, True)


# ------------------------------------------------------------------------------------------- killed
@pytest.mark.parametrize("seed", range(3))
def test_killed_runs_go_on(shop: ModuleType, start: Start, here: Here, calls: Calls, seed: int) -> None:
    """Whenever `poimen run -o OUT --resume` is killed, repeating it ends with each outcome in OUT once (promise D1)."""
    rng = random.Random(seed)
    count = 1_200
    path = calls(*(task("nap", 0.001) for _ in range(count)))
    out = path.with_name("out.jsonl")
    for done in sorted(rng.sample(range(count - 200), 2)):
        run = start(path, "-o", out, "--resume")
        eventually(lambda done=done: out.exists() and len(out.read_bytes().splitlines()) >= done)
        run.process.kill()
        run.end()
        if rng.random() < 0.5:
            with out.open("ab") as file:
                file.write(b'{"item_id": "7", "status": "succ')
    run = start(path, "-o", out, "--resume")
    assert run.end() == (0, ""), run.said()
    assert sorted(map(int, ids(out.read_text()))) == list(range(count))
    status = shop.poimen.batch(run.batch_id()).status()
    assert (status.total, status.state) == (count, BatchState.COMPLETED)
    assert (here(path, "-o", out, "--resume").exit_code, len(ids(out.read_text()))) == (0, count)


def test_killed_in_the_middle_of_the_dispatch(shop: ModuleType, start: Start, tmp_path: Path) -> None:
    """A run that is killed before all calls are written goes on with those that are missing."""
    out, rows = tmp_path / "out.jsonl", jsonl(task("noop", n) for n in range(900))
    first = start("-", "-o", out)
    first.write("".join(rows.splitlines(keepends=True)[:600]))
    batch = shop.poimen.batch(first.batch_id())
    eventually(lambda: len(out.read_bytes().splitlines()) >= 200)
    first.process.kill()
    first.end()
    assert batch.status().total < 900
    second = start("-", "-o", out, "--resume")
    second.write(rows)
    assert second.end() == (0, ""), second.said()
    assert sorted(map(int, ids(out.read_text()))) == list(range(900))
    assert second.batch_id() == batch.id


def test_going_on_by_hand(shop: ModuleType, here: Here, calls: Calls) -> None:
    """Without an output file --batch-id, --resume and --after go on; without --resume an existing batch is refused."""
    path, batch_id = calls(*(task("noop", n) for n in range(30))), f"b-{secrets.token_hex(4)}"
    first = here(path, "--batch-id", batch_id, "--resume")
    lines = first.stdout.splitlines(keepends=True)
    assert (first.exit_code, len(lines)) == (0, 30)
    cursor = json.loads(lines[9])["cursor"]
    rest = here(path, "--batch-id", batch_id, "--resume", "--after", str(cursor))
    assert (rest.exit_code, rest.stdout) == (0, "".join(lines[10:]))
    refused = here(path, "--batch-id", batch_id)
    assert (refused.exit_code, f"batch {batch_id} exists (completed)" in refused.stderr) == (1, True)
    assert "--resume" in refused.stderr


def test_what_cannot_be_gone_on_with(shop: ModuleType, here: Here, calls: Calls, tmp_path: Path) -> None:
    """Other calls, another batch, a file without its note and somebody else's batch are refused with exit code 2."""
    out, batch_id = tmp_path / "out.jsonl", f"b-{secrets.token_hex(4)}"
    assert here(calls(task("noop", 1)), "-o", out, "--batch-id", batch_id).exit_code == 0
    before = out.read_text()
    other = tmp_path / "other.jsonl"
    other.write_text(jsonl([task("noop", 2)]))
    path = tmp_path / "calls.jsonl"
    cases = {
        "has changed": (other, "-o", out, "--resume"),
        f"outcomes of batch {batch_id}, not of b2": (path, "-o", out, "--resume", "--batch-id", "b2"),
        "has content already": (path, "-o", out),
    }
    for words, command in cases.items():
        done = here(*command)
        assert (done.exit_code, words in done.stderr) == (2, True), done.stderr
    Path(f"{out}.run").unlink()
    done = here(calls(task("noop", 1)), "-o", out, "--resume")
    assert (done.exit_code, "is gone" in done.stderr) == (2, True), done.stderr
    theirs = shop.poimen.dispatch(shop.poimen.map(shop.noop, [1]))
    done = here(calls(task("noop", 1)), "--batch-id", theirs.id, "--resume")
    assert (done.exit_code, "was not made by `poimen run`" in done.stderr) == (2, True), done.stderr
    assert out.read_text() == before


def test_after_the_batch_is_forgotten(shop: ModuleType, here: Here, calls: Calls, tmp_path: Path) -> None:
    """When its batch is not known any more, a run that had ended says how; one that had not says so."""
    out, store = tmp_path / "out.jsonl", shop.poimen.store
    path = calls(task("odd_fails", 1), task("noop", 1))
    assert here(path, "-o", out).exit_code == 1
    note = json.loads(Path(f"{out}.run").read_text())
    store.client.redis.delete(store.keys.record(note["batch_id"]))
    done = here(path, "-o", out, "--resume")
    assert (done.exit_code, "had ended before, failed: 1 of 2" in done.stderr) == (1, True), done.stderr
    Path(f"{out}.run").write_text(json.dumps({"batch_id": note["batch_id"]}))
    done = here(path, "-o", out, "--resume")
    assert (done.exit_code, "retention is over" in done.stderr) == (1, True), done.stderr
    assert len(ids(out.read_text())) == 2


# ------------------------------------------------------------------------------------------- interrupted
def test_ctrl_c_leaves_the_batch(shop: ModuleType, start: Start, calls: Calls, tmp_path: Path) -> None:
    """Ctrl-C leaves a batch that is whole and goes on; the same command with --resume collects the rest."""
    out = tmp_path / "out.jsonl"
    path = calls(*(task("nap", 0.05) for _ in range(60)))
    run = start(path, "-o", out)
    eventually(lambda: out.exists() and len(out.read_bytes().splitlines()) >= 5)
    run.process.send_signal(signal.SIGINT)
    code, _ = run.end()
    assert (code, f"left batch {run.batch_id()}: it goes on" in run.said()) == (130, True), run.said()
    assert f"poimen cancel -A {APP} {run.batch_id()}" in run.said()
    rest = start(path, "-o", out, "--resume")
    assert rest.end() == (0, ""), rest.said()
    assert sorted(map(int, ids(out.read_text()))) == list(range(60))


def test_ctrl_c_cancels_when_asked(shop: ModuleType, start: Start, calls: Calls) -> None:
    """With --on-interrupt cancel what waits is cancelled, what runs ends, and every item has its outcome."""
    run = start(calls(*(task("nap", 0.2) for _ in range(40))), "--on-interrupt", "cancel")
    line = run.process.stdout.readline().decode()
    run.process.send_signal(signal.SIGINT)
    code, out = run.end()
    assert (code, "cancelled: " in run.said()) == (130, True), run.said()
    assert sorted(map(int, ids(line + out))) == list(range(40))
    status = shop.poimen.batch(run.batch_id()).status()
    assert (status.state, status.failed) == (BatchState.CANCELLED, 0)


def test_a_second_ctrl_c_leaves_at_once(shop: ModuleType, start: Start, calls: Calls, notes: Path) -> None:
    """While running items of a cancelled batch are waited for, Ctrl-C again ends the run."""
    run = start(calls(task("nap", 30.0), task("marked", str(notes), "a", 0.0)), "--on-interrupt", "cancel")
    run.process.stdout.readline()
    run.process.send_signal(signal.SIGINT)
    eventually(lambda: "cancelling" in run.said())
    run.process.send_signal(signal.SIGINT)
    code, _ = run.end()
    assert (code, "Traceback" in run.said()) == (130, False), run.said()
    shop.poimen.batch(run.batch_id()).cancel(terminate=True)
    eventually(lambda: shop.poimen.batch(run.batch_id()).status().is_over)


def test_an_interrupted_pipe_is_not_whole(shop: ModuleType, start: Start) -> None:
    """Ctrl-C also ends whoever writes the pipe: the batch is not taken for whole, and says how to go on."""
    run = start()
    run.write(jsonl(task("noop", n) for n in range(600)))
    run.process.stdout.readline()
    run.process.send_signal(signal.SIGINT)
    code, _ = run.end()
    assert code == 130
    assert (
        f"only the first 256 calls are in it, and run; `poimen run -A {APP} - --batch-id {run.batch_id()}" in run.said()
    )
    batch = shop.poimen.batch(run.batch_id())
    eventually(lambda: batch.status().succeeded == 256)
    assert not batch.status().is_over


def test_a_reader_that_goes_away(shop: ModuleType, start: Start, calls: Calls) -> None:
    """When nobody reads stdout any more, the calls are handed over whole and the batch goes on, without a traceback."""
    run = start(calls(*(task("noop", n) for n in range(3_000))))
    assert json.loads(run.process.stdout.readline())
    run.process.stdout.close()
    assert run.process.wait(30) == 141
    assert "Traceback" not in run.said()
    assert "it goes on" in run.said()
    report = shop.poimen.batch(run.batch_id()).wait(timeout=30)
    assert (report.succeeded, report.total) == (3_000, 3_000)


def test_a_time_limit(shop: ModuleType, here: Here, calls: Calls) -> None:
    """--timeout leaves a batch that goes on, with an exit code of its own, and says what it waits for."""
    done = here(calls(task("noop", 1)), "--queue", "gpu", "--timeout", "1.5")
    assert (done.exit_code, done.stdout) == (124, "")
    assert f"no worker serves queue gpu: start one with `poimen worker -A {APP} -Q gpu`" in done.stderr
    batch_id = done.stderr.split()[1]
    assert f"`poimen watch -A {APP} {batch_id} --json` prints the rest" in done.stderr
    shop.poimen.batch(batch_id).cancel()


def test_a_server_that_restarts(tmp_path: Path, module_env: dict[str, str], calls: Calls) -> None:
    """A Redis that is away for a moment ends no run: it says so, and goes on when the server is back (fault D01)."""
    with EmbeddedServer(tmp_path / "server") as server:
        env = {**module_env, "POIMEN_REDIS_URL": server.url, "POIMEN_BROKER_URL": server.url}
        run = Process(env, tmp_path, calls(*(task("noop", n) for n in range(3))))
        batch_id = run.batch_id()
        eventually(lambda: "3 pending" in run.said())
        server.kill()
        eventually(lambda: "does not answer; trying again" in run.said())
        server.restart()
        cancel = ["poimen_tasks.cli", "cancel", "-A", APP, batch_id]
        nursery.run(cancel, env={**os.environ, "PYTHONPATH": str(ROOT), **env}).check_returncode()
        code, out = run.end()
    assert (code, sorted(ids(out))) == (1, ["0", "1", "2"]), run.said()
