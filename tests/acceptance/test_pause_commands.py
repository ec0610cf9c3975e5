"""`poimen pause`, `resume` and `pauses` against a real server, as a person or a program types them."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from poimen_tasks import Poimen
from poimen_tasks.cli import main
from poimen_tasks.store.values import Ticket
from tests.integration.lanes import begin

Run = Callable[..., Result]
SHOP = """
from poimen_tasks import Poimen
poimen = Poimen('shop', redis_url={url!r}, namespace={namespace!r})
@poimen.task(shared=False)
def noop(value): ...
"""


@pytest.fixture
def app(redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with a Poimen and a task; nothing works for it."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.syspath_prepend(tmp_path)
    name = f"shop_{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(url=redis_url, namespace=namespace))
    return name


@pytest.fixture
def poimen(redis_url: str, namespace: str) -> Iterator[Poimen]:
    """A Poimen beside it."""
    other = Poimen("other", redis_url=redis_url, namespace=namespace)

    def noop(value: object) -> None:
        """Nothing."""

    other.celery.task(noop, name="noop", shared=False)
    yield other
    other.close()


@pytest.fixture
def run(app: str) -> Run:
    """Run a command for that module."""

    def invoke(command: str, *words: str) -> Result:
        return CliRunner().invoke(main, [command, "-A", app, *words], prog_name="poimen")

    return invoke


def test_pausing_and_resuming(run: Run, poimen: Poimen) -> None:
    """`pause` says how to go on, `pauses` who, why, since when and what is held, `resume` lets it go (promise P4)."""
    assert run("pauses").stdout == "nothing is paused\n"
    batch = poimen.dispatch(poimen.map("noop", range(7)), workflow="nightly")
    said = run(
        "pause", "--workflow", "nightly", "--reason", "database upgrade", "--actor", "ops", "--expires", "100000"
    )
    assert (said.exit_code, "resume -A" in said.stdout, "--workflow nightly" in said.stdout) == (0, True, True)
    listed = run("pauses").stdout
    for word in ("workflow nightly", "ops", "database upgrade", "7 items of 1 batch", "in 1 d 3 h"):
        assert word in listed
    shown = json.loads(run("pauses", "--json").stdout)
    (row,) = shown["pauses"]
    assert row["held_batches"] == {batch.id: 7}
    assert (row["scope"], row["actor"], row["reason"]) == (
        {"kind": "workflow", "id": "nightly"},
        "ops",
        "database upgrade",
    )
    assert (shown["stats"]["total"], shown["stats"]["paused"]) == (1, 1)
    advice = run("status", batch.id).stdout
    assert "is paused by workflow nightly" in advice
    assert "resume -A" in advice
    resumed = json.loads(run("resume", "--workflow", "nightly", "--rate", "5", "--json").stdout)
    assert (resumed["paused"], resumed["rate"]) == (False, 5.0)
    assert run("pauses").stdout == "nothing is paused\n"
    assert "resumed" in run("pauses", "--all").stdout


@pytest.mark.parametrize(
    "scope", [("--workflow", "w"), ("--batch", "b"), ("--queue", "q"), ("--activity", "t"), ("--everything",)]
)
def test_every_scope(run: Run, scope: tuple[str, ...]) -> None:
    """Each scope can be paused, listed and resumed, and what is not known is said to be so."""
    said = run("pause", *scope)
    assert said.exit_code == 0
    if scope[0] in ("--workflow", "--batch", "--activity"):
        assert "known" in said.stdout
    (row,) = json.loads(run("pauses", "--json").stdout)["pauses"]
    assert row["scope"] == {"kind": scope[0][2:], "id": "".join(scope[1:])}
    assert run("resume", *scope).exit_code == 0


@pytest.mark.parametrize("command", ["pause", "resume"])
@pytest.mark.parametrize("words", [(), ("--workflow", "a", "--queue", "b"), ("--workflow", "a", "--everything")])
def test_exactly_one_scope(run: Run, command: str, words: tuple[str, ...]) -> None:
    """None and two scopes are misuse: exit code 2, and nothing is paused."""
    said = run(command, *words)
    assert (said.exit_code, "exactly one of" in said.stderr) == (2, True)
    assert json.loads(run("pauses", "--json").stdout)["pauses"] == []


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("pause", "--workflow", "w", "--grace", "-1"), 2, "--grace"),
        (("pause", "--workflow", "w", "--expires", "0"), 2, "--expires"),
        (("pause", "--workflow", "no id"), 1, "workflow id"),
        (("resume", "--workflow", "w", "--rate", "0"), 2, "--rate"),
        (("resume", "--workflow", "w"), 1, "workflow w is not paused"),
    ],
)
def test_bad_input(run: Run, words: tuple[str, ...], code: int, part: str) -> None:
    """What is out of range, or not paused, is told in one line, and nothing is paused."""
    said = run(*words)
    assert (said.exit_code, part in said.stderr) == (code, True)
    assert json.loads(run("pauses", "--json").stdout)["pauses"] == []


def test_looking_without_an_app(
    run: Run, redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pauses` and `drain` need no task: without an app the settings are those of the environment."""

    def bare(*words: str) -> Result:
        return CliRunner().invoke(main, words, prog_name="poimen")

    assert run("pause", "--queue", "q").exit_code == 0
    monkeypatch.setenv("POIMEN_DATA_DIR", str(tmp_path))
    assert bare("pauses").exit_code == 1
    monkeypatch.setenv("POIMEN_REDIS_URL", redis_url)
    monkeypatch.setenv("POIMEN_NAMESPACE", namespace)
    assert "queue q" in bare("pauses").stdout
    assert bare("drain").stdout == "no worker is there\n"
    # What sends messages takes the broker and its options from the app.
    assert bare("resume", "--queue", "q").exit_code == 2


def test_errors_speak_of_commands(run: Run, app: str) -> None:
    """What is not paused is told in terms of the command line, with the app in it."""
    said = run("resume", "--workflow", "w")
    assert said.stderr == f"error: workflow w is not paused; `poimen pauses -A {app}` has what is\n"
    assert json.loads(run("resume", "--workflow", "w", "--json").stdout)["error"]["type"] == "NotPaused"


def test_a_task_by_half_of_its_name(run: Run, app: str) -> None:
    """A task that is not known is told, with the one that may be meant."""
    said = run("pause", "--activity", "other.noop").stdout
    assert f"no task of that name is known here; did you mean {app}.noop?" in said
    assert "did you mean" in run("pause", "--activity", "noop").stdout
    assert "known here" not in run("pause", "--activity", f"{app}.noop").stdout
    assert "did you mean" not in run("pause", "--activity", "zzzzzz").stdout


def test_a_batch_that_is_over(run: Run, poimen: Poimen) -> None:
    """The pause of a batch that is over stands, and is told to hold nothing, at once and in the list."""
    poimen.dispatch(poimen.map("noop", range(2)), batch_id="done").cancel(reason="x", actor="ann")
    poimen.dispatch(poimen.map("noop", range(2)), batch_id="open")
    assert "batch done is over already: the pause stands" in run("pause", "--batch", "done").stdout
    assert "over already" not in run("pause", "--batch", "open").stdout
    assert "over already, so their pauses hold nothing: done\n" in run("pauses").stdout
    assert run("resume", "--batch", "done").exit_code == 0
    assert "over already" not in run("pauses").stdout


def test_a_stale_epoch(run: Run) -> None:
    """`resume --epoch` of a pause that was replaced is refused, and what is paused stays so."""
    first = json.loads(run("pause", "--queue", "q", "--json").stdout)["epoch"]
    second = json.loads(run("pause", "--queue", "q", "--json").stdout)["epoch"]
    said = run("resume", "--queue", "q", "--epoch", str(first), "--json")
    assert (said.exit_code, json.loads(said.stdout)["error"]["type"]) == (1, "StaleEpoch")
    assert run("resume", "--queue", "q", "--epoch", str(second)).exit_code == 0


def test_waiting_until_quiet(run: Run, poimen: Poimen) -> None:
    """`pause --wait` exits 124 while something runs on, and names it; 0 once nothing does."""
    batch = poimen.dispatch(poimen.map("noop", range(4)), workflow="w")
    (raw,) = poimen.store.client.redis.hvals(poimen.store.keys.build("slots", batch.id))[:1]
    lane = begin(poimen.store, Ticket(batch.id, 0, int(raw.split(b"|")[1]), "celery", 0), 2)
    said = run("pause", "--workflow", "w", "--wait", "0")
    assert (said.exit_code, f"{batch.id}.0, {batch.id}.1" in said.stderr) == (124, True)
    assert "--workflow w --wait 0` waits again, with --grace SECONDS or --terminate it stops them" in said.stderr
    said = run("pause", "--workflow", "w", "--wait", "1.5")
    assert said.stderr.startswith("workflow w is paused; 2 of it still run\n")
    assert run("pause", "--workflow", "w", "--wait", "1.5", "--json").stderr.startswith("error: ")
    assert "2 still run, they may finish" in run("pause", "--workflow", "w").stdout
    (row,) = json.loads(run("pauses", "--json").stdout)["pauses"]
    assert row["running_items"] == 2
    lane.finish("free", ok=[0, 1])
    assert "nothing of it runs any more" in run("pause", "--workflow", "w", "--wait", "5").stdout


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e10"])
def test_a_wait_that_cannot_be_pauses_nothing(run: Run, poimen: Poimen, seconds: str) -> None:
    """The number is looked at before anything is paused."""
    made = run("pause", "--workflow", "wf-nan", "--wait", seconds)
    assert made.exit_code == 1
    assert "wait: expected a number from 0" in made.output
    assert not poimen.pauses.is_paused("wf-nan")
