"""Everything that a body may do, ask and be given inside an item, on real workers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import chain

from poimen_tasks import Item, ItemStatus, Outcome
from tests.acceptance.projects import HERE, path_to, project
from tests.conftest import Workers, eventually


@pytest.fixture(scope="module")
def inside(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """The app in this process."""
    with project("inside", module_env) as module:
        yield module
        module.poimen.store.client.close()
        module.app.close()


@pytest.fixture(scope="module")
def worker(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """A worker with two processes that has the worker's version of the functions."""
    env = {**module_env, "PYTHONPATH": path_to(HERE), "INSIDE_ROLE": "worker"}
    group = Workers(tmp_path_factory.mktemp("workers"), env)
    group.start("inside", concurrency=2)
    yield group
    group.destroy_all()


pytestmark = pytest.mark.usefixtures("worker")


def run(inside: ModuleType, calls: dict[str, Any], **options: Any) -> dict[str, Outcome]:
    """Run calls as one batch and give their outcomes by name."""
    work = [Item(signature, id=name) for name, signature in calls.items()]
    batch = inside.poimen.dispatch(work, **options)
    return {outcome.item_id: outcome for outcome in batch.outcomes(timeout=40)}


def lines(path: Path) -> list[list[Any]]:
    """What bodies and callbacks noted."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# ------------------------------------------------------------------------------------------- retries
@pytest.fixture(scope="module")
def retried(inside: ModuleType, worker: Workers) -> dict[str, Outcome]:
    """One batch with every form of `self.retry`."""
    return run(inside, {how: inside.retries.s(how) for how in inside.RETRIES})


@pytest.mark.parametrize(
    ("how", "kind", "text", "attempts"),
    [
        ("with exc", "ValueError", "given", 3),
        ("without exc", "MaxRetriesExceededError", "Can't retry", 3),
        ("max_retries here", "ValueError", "once", 2),
        ("no time", "InvalidArgument", "retry({'countdown': 'soon'})", 1),
        ("never", "InvalidArgument", "inf", 1),
        ("bad argument", "SerializationError", "set", 1),
    ],
)
def test_a_retry_that_ends_as_a_failure(
    retried: dict[str, Outcome], how: str, kind: str, text: str, attempts: int
) -> None:
    """Celery's limit ends retries with the error given, or its own; what cannot be retried fails its item at once."""
    outcome = retried[how]
    assert (outcome.status, outcome.error.type, outcome.attempts) == (ItemStatus.FAILED, kind, attempts)
    assert text in outcome.error.message


@pytest.mark.parametrize("how", ["quiet", "quiet and raise", "caught", "aware", "naive", "text", "elsewhere"])
def test_a_retry_runs_the_same_item_again(retried: dict[str, Outcome], how: str) -> None:
    """Thrown or not, at once or at a moment however written, its queue option without effect: one more attempt."""
    outcome = retried[how]
    assert (outcome.result, outcome.attempts) == ([1, "celery"], 2)


@pytest.mark.parametrize(("how", "attempts"), [("changed", 3), ("keywords", 2)])
def test_a_retry_with_other_arguments(retried: dict[str, Outcome], how: str, attempts: int) -> None:
    """`args=` and `kwargs=` change the call of the next attempt."""
    assert (retried[how].result, retried[how].attempts) == ("went on", attempts)


def test_autoretry_knows_which_errors(inside: ModuleType) -> None:
    """`autoretry_for` retries up to `max_retries`; what `dont_autoretry_for` names fails at once."""
    found = run(inside, {kind: inside.autoretries.s(kind) for kind in ("value", "key")})
    assert (found["value"].error.type, found["value"].attempts) == ("ValueError", 4)
    assert (found["key"].error.type, found["key"].attempts) == ("KeyError", 1)


def test_a_rejected_item_that_is_put_back(inside: ModuleType) -> None:
    """`Reject(requeue=True)` runs the item again."""
    found = run(inside, {"a": inside.rejects_once.s()})["a"]
    assert (found.result, found.attempts) == ("then", 2)


@pytest.mark.parametrize("name", ["replaces", "adds_to_chord"])
def test_what_would_change_the_batch_is_refused(inside: ModuleType, name: str) -> None:
    """`self.replace` and `self.add_to_chord` fail their item with the reason (fault A24)."""
    error = run(inside, {"a": getattr(inside, name).s()})["a"].error
    assert error.type == "UnsupportedWork"
    assert "a batch's size is fixed" in error.message


# ------------------------------------------------------------------------------------------- failures
@pytest.fixture(scope="module")
def failed(inside: ModuleType, worker: Workers) -> dict[str, Outcome]:
    """One batch with every kind of failure, and an item that works behind each."""
    calls = {how: inside.fails.s(how) for how in inside.FAILURES}
    return run(inside, calls | {f"{how} next": inside.add.s(1, 1) for how in calls})


def test_no_failure_touches_another_item(failed: dict[str, Outcome], inside: ModuleType) -> None:
    """Whatever is raised or returned, its item fails at its first attempt, and every other item works (promise D3)."""
    for how in inside.FAILURES:
        assert (failed[how].status, failed[how].attempts) == (ItemStatus.FAILED, 1), how
        assert failed[f"{how} next"].result == 2


@pytest.mark.parametrize(
    ("how", "kind", "text", "trace"),
    [
        ("two arguments", "inside.NeedsTwo", "^a and b$", "NeedsTwo: a and b"),
        ("unpicklable", "inside.Holds", "^held$", "Holds: held"),
        ("mute", "inside.Mute", "no text: RuntimeError", "in body"),
        ("nested", "inside.Nested", "^a and b$", "Nested: a and b"),
        ("local", "inside._local.<locals>.Local", "^here$", "in _local"),
        ("recursion", "RecursionError", "maximum recursion depth", "in _deep"),
        ("group", "ExceptionGroup", r"two \(2 sub-exceptions\)", "second of two"),
        ("chained", "ValueError", "^effect$", "KeyError: 'cause'"),
        ("surrogate", "ValueError", "bad .* text", "in body"),
        ("memory", "MemoryError", "none left", "in body"),
    ],
)
def test_an_exception_of_any_class(failed: dict[str, Outcome], how: str, kind: str, text: str, trace: str) -> None:
    """The outcome has the name and text of what was raised, though its class can be neither pickled nor made again."""
    error = failed[how].error
    assert error.type == kind
    assert re.search(text, error.message)
    assert trace in error.traceback


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("generator", "generator"),
        ("function", "function"),
        ("object", "rows[0]"),
        ("set", "set"),
        ("int key", "int"),
        ("exception as a result", "ValueError"),
    ],
)
def test_a_result_that_does_not_travel(failed: dict[str, Outcome], how: str, text: str) -> None:
    """It fails its item; the error names what it is, or its place in the value (fault F06)."""
    error = failed[how].error
    assert error.type == "SerializationError"
    assert text in error.message


@pytest.fixture
def mortal(module_env: dict[str, str], workers: Workers) -> str:
    """The queue of a worker of its own: Celery keeps the slot of a lost process a while."""
    workers.start("inside", concurrency=2, queues="mortal", env={**module_env, "PYTHONPATH": path_to(HERE)})
    return "mortal"


def test_what_is_no_exception(inside: ModuleType, mortal: str) -> None:
    """`sys.exit`, an interrupt, a cancelled coroutine and their like fail their own item only, each once."""
    kinds = ("exit", "interrupt", "asyncio", "own", "group")
    calls = {how: inside.leaves.s(how) for how in kinds} | {str(n): inside.add.s(n, n) for n in range(10)}
    found = run(inside, calls, queue=mortal)
    types = [found[how].error.type for how in kinds]
    assert types == ["SystemExit", "KeyboardInterrupt", "asyncio.exceptions.CancelledError", "inside.Own",
                     "BaseExceptionGroup"]  # fmt: skip
    assert {found[how].attempts for how in kinds} == {1}
    assert [found[str(n)].result for n in range(10)] == [2 * n for n in range(10)]


# ------------------------------------------------------------------------------------------- links
def test_links_of_every_kind(inside: ModuleType, tmp_path: Path) -> None:
    """A list of links and a chain as a link get the item's result, each step of the chain the one before."""
    path = str(tmp_path / "notes")
    good = inside.add.s(2, 3)
    good.link(inside.tell.s(path, "one"))
    good.link(inside.tell.s(path, "two"))
    good.link(chain(inside.add.s(10), inside.tell.s(path, "chain")))
    run(inside, {"a": good})
    assert eventually(lambda: sorted(lines(tmp_path / "notes")) == [["chain", 15], ["one", 5], ["two", 5]])


def test_errbacks_of_every_kind(inside: ModuleType, tmp_path: Path) -> None:
    """An errback of one argument gets the message id, one of three the request, the error and the traceback."""
    path = str(tmp_path / "notes")
    bad = inside.boom.s("x").on_error(inside.errback_old.s(path)).on_error(inside.errback_new.s(path))
    bad.link(inside.tell.s(path, "never"))
    batch = inside.poimen.dispatch([bad])
    outcome = next(batch.outcomes(timeout=30))
    assert (outcome.error.type, outcome.error.message) == ("ValueError", "x")
    expected = [["new", f"{batch.id}.0", "x", "ValueError", True], ["old", f"{batch.id}.0"]]
    assert eventually(lambda: sorted(lines(tmp_path / "notes")) == expected)


@pytest.mark.parametrize("how", ["works", "fails"])
def test_links_wait_for_the_last_attempt(inside: ModuleType, tmp_path: Path, how: str) -> None:
    """A body that goes on after `retry(throw=False)` runs neither links nor errbacks; the last attempt does, once."""
    path = str(tmp_path / "notes")
    signature = inside.retries_then.s(how).on_error(inside.tell.s(path, "errback"))
    signature.link(inside.tell.s(path, "link"))
    batch = inside.poimen.dispatch([signature])
    outcome = next(batch.outcomes(timeout=30))
    assert outcome.attempts == 2
    expected = [["link", "works"]] if how == "works" else [["errback", f"{batch.id}.0"]]
    assert eventually(lambda: lines(tmp_path / "notes") == expected)


# ------------------------------------------------------------------------------------------- time
def test_when_an_item_runs(inside: ModuleType) -> None:
    """`eta` and `countdown` delay, `expires` as seconds and as a moment skips what is late, and only that."""
    now = datetime.now(UTC)
    add = inside.add
    found = run(
        inside,
        {
            "eta": add.s(1, 1).set(eta=now + timedelta(seconds=0.6)),
            "countdown": add.s(2, 2).set(countdown=0.3),
            "past": add.s(3, 3).set(eta=now - timedelta(hours=1)),
            "late by seconds": add.s(4, 4).set(countdown=0.3, expires=0.1),
            "late by a moment": add.s(5, 5).set(countdown=0.3, expires=now + timedelta(seconds=0.1)),
            "in time": add.s(6, 6).set(expires=3600),
            "in time, too": add.s(7, 7).set(expires=now + timedelta(hours=1)),
        },
    )
    assert found["eta"].started_at >= now + timedelta(seconds=0.59)
    assert found["countdown"].started_at >= now + timedelta(seconds=0.29)
    assert [found[name].result for name in ("eta", "countdown", "past", "in time", "in time, too")] == [2, 4, 6, 12, 14]
    for name in ("late by seconds", "late by a moment"):
        assert (found[name].status, found[name].error.type) == (ItemStatus.SKIPPED, "Expired")


def test_limits_of_single_items(inside: ModuleType) -> None:
    """`.set(time_limit=)` and `.set(soft_time_limit=)` hold for their own item, not for the same task beside it."""
    naps = inside.naps
    found = run(
        inside,
        {
            "soft": naps.s(5.0).set(soft_time_limit=0.3),
            "hard": naps.s(5.0).set(time_limit=0.3),
            "free": naps.s(0.5),
            "roomy": naps.s(0.5).set(soft_time_limit=20, time_limit=30),
            "told": inside.facts.s().set(soft_time_limit=20, time_limit=30),
        },
    )
    assert found["soft"].error.type == "SoftTimeLimitExceeded"
    assert found["hard"].error.type == "TimeLimitExceeded"
    assert (found["free"].result, found["roomy"].result) == (0.5, 0.5)
    assert found["told"].result["timelimit"] == [30, 20]


def test_priorities_of_single_items(inside: ModuleType) -> None:
    """`.set(priority=)` takes the broker's number as in Celery, and the three names as a batch does."""
    calls = {str(given): inside.facts.s().set(priority=given) for given in (7, "high", "normal", "low")}
    found = run(inside, calls)
    numbers = [found[name].result["delivery_info"]["priority"] for name in ("7", "high", "normal", "low")]
    assert numbers == [7, 0, 3, 9]


# ------------------------------------------------------------------------------------------- what it is told
def test_the_request_of_an_item(inside: ModuleType, worker: Workers) -> None:
    """The request names the item's message, its place, attempt and worker, and is no direct call."""
    batch = inside.poimen.dispatch([inside.add.s(1, 1), inside.facts.s("x")])
    told = batch.wait(timeout=30).results["1"]
    assert told["id"] == told["root_id"] == told["correlation_id"] == f"{batch.id}.1"
    assert (told["retries"], told["direct"], told["is_eager"], told["args"]) == (0, False, False, ["x"])
    assert told["hostname"] == worker.all[0].name
    assert told["delivery_info"] == {"exchange": "", "routing_key": "celery", "priority": 3, "redelivered": False}


def test_headers_are_each_item_s_own(inside: ModuleType) -> None:
    """What a body writes into its request's headers is not there for the next item of the lane."""
    batch = inside.poimen.dispatch(inside.poimen.map(inside.changes_its_headers, ["a", "b", "c"]), concurrency=1)
    assert list(batch.wait(timeout=30).results.values()) == [["a"], ["b"], ["c"]]


def test_states_of_the_body_s_own(inside: ModuleType) -> None:
    """`self.update_state` is found in the app's result backend under the message id; the outcome is ours."""
    batch = inside.poimen.dispatch([inside.tells_its_state.s(), inside.ignores_after_a_state.s()])
    report = batch.wait(timeout=30)
    assert report.results["0"] == f"{batch.id}.0"
    kept = inside.app.AsyncResult(f"{batch.id}.0")
    assert (kept.state, kept.info) == ("PROGRESS", {"done": 7})
    assert inside.app.AsyncResult(f"{batch.id}.1").state == "HALFWAY"
    assert batch.status().skipped == 1


SIGNALS = {
    "works": ["task_prerun", "task_success", "task_postrun"],
    "fails": ["task_prerun", "task_failure", "task_postrun"],
    "ignores": ["task_prerun", "task_postrun"],
    "retries": ["task_prerun", "task_retry", "task_postrun", "task_prerun", "task_success", "task_postrun"],
}


@pytest.mark.parametrize("how", SIGNALS)
def test_signals_of_an_item(inside: ModuleType, tmp_path: Path, how: str) -> None:
    """Celery's signals are sent once an attempt, by the task, with the item's message id."""
    path = tmp_path / "notes"
    batch = inside.poimen.dispatch([inside.watched.s(str(path), how)])
    batch.wait(timeout=30)
    assert [line[0] for line in lines(path)] == SIGNALS[how]
    assert {(line[1], line[2]) for line in lines(path)} == {(f"{batch.id}.0", inside.watched.name)}


# ------------------------------------------------------------------------------------------- other code
@pytest.mark.parametrize("kind", ["plain", "policy", "autoretry", "both", "pydantic", "class"])
def test_a_call_that_no_longer_fits(inside: ModuleType, kind: str) -> None:
    """A call that the worker's function does not take fails as SignatureMismatch, however eager the retries are."""
    task = inside.mismatches[kind]
    call = task.s({"name": "n"}, 2) if kind == "pydantic" else task.s(1, 2)
    outcome = run(inside, {"a": call})["a"]
    assert (outcome.error.type, outcome.attempts) == ("SignatureMismatch", 1)
    assert task.name in outcome.error.message
    assert "too many positional arguments" in outcome.error.message


@pytest.mark.parametrize(("kind", "attempts"), [("plain", 1), ("policy", 2), ("autoretry", 2)])
def test_a_type_error_of_the_body_stays_one(inside: ModuleType, tmp_path: Path, kind: str, attempts: int) -> None:
    """A body that fits and calls something else wrongly fails with its own TypeError, and is retried as asked."""
    outcome = run(inside, {"a": inside.body_errors[kind].s(str(tmp_path / "notes"), 1)})["a"]
    assert (outcome.error.type, outcome.attempts) == ("TypeError", attempts)
    assert len(lines(tmp_path / "notes")) == attempts


def test_a_base_that_adds_arguments(inside: ModuleType) -> None:
    """Where a `__call__` completes the call, a TypeError of the body is the body's too."""
    assert run(inside, {"a": inside.adds.s(1)})["a"].error.type == "TypeError"
