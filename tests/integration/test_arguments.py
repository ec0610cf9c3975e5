"""Arguments of another kind than is meant: each is one error of our tree that names it, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from poimen_tasks import CacheKey, InvalidArgument, Item, Poimen

Call = Callable[[Poimen], Any]
SCOPES = "workflow, batch, queue, activity, everything"
#: Each has members, though not those that are meant, or has none.
NO_LISTS = ["abc", b"abc", bytearray(b"abc"), {"a": 1}, 5]


@pytest.fixture
def poimen(poimen: Poimen) -> Poimen:
    """An app with one task, a workflow and a batch, without workers."""

    @poimen.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    poimen.dispatch(poimen.map(double, [1]), workflow="w", batch_id="b")
    return poimen


UNKNOWN: dict[str, tuple[Call, str]] = {
    "pause": (
        lambda p: p.pause(foo=1),
        f"Allowed are snapshot, reason, actor, grace, terminate, expires, request_id, {SCOPES}$",
    ),
    "resume": (
        lambda p: p.resume(workflow="w", foo=1),
        f"Allowed are reason, actor, rate, epoch, request_id, {SCOPES}$",
    ),
    "reset": (lambda p: p.pauses.reset("w", foo=1), f"Allowed are actor, {SCOPES}$"),
    "is_paused": (lambda p: p.pauses.is_paused("w", foo=1), f"Allowed are {SCOPES}$"),
    "state": (lambda p: p.pauses.state(foo=1), f"Allowed are {SCOPES}$"),
    "held": (lambda p: p.pauses.held("w", foo=1), f"Allowed are limit, {SCOPES}$"),
    "running": (lambda p: p.pauses.running("w", foo=1), f"Allowed are {SCOPES}$"),
    "wait": (lambda p: p.pauses.wait("w", foo=1), f"Allowed are timeout, {SCOPES}$"),
    "batch": (lambda p: p.batch("b").pause(foo=1), "Allowed are snapshot"),
    "workflow": (lambda p: p.workflow("w").resume(foo=1), "Allowed are reason"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_option_of_pausing_that_is_none(poimen: Poimen, name: str) -> None:
    """An option that a verb does not have is named, with those that it has; nothing is paused."""
    call, said = UNKNOWN[name]
    with pytest.raises(InvalidArgument, match=f"^foo=: no such option\\. {said}"):
        call(poimen)
    assert poimen.pauses.all() == []


def test_an_option_that_is_mistyped(poimen: Poimen) -> None:
    """What is likely to be meant is said."""
    with pytest.raises(InvalidArgument, match=r"^grase=: no such option; did you mean grace=\? Allowed"):
        poimen.pause(workflow="w", grase=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("scope", ["workflow", "batch", "queue", "activity", "everything"])
def test_a_handle_says_what_is_meant(poimen: Poimen, scope: str) -> None:
    """A batch and a workflow are paused by themselves: another scope, or their own once more, is refused."""
    for handle, what in ((poimen.batch("b"), "batch b"), (poimen.workflow("w"), "workflow w")):
        for verb in (handle.pause, handle.resume):
            with pytest.raises(InvalidArgument, match=f"^{scope}=: {what} is what is meant"):
                verb(**{scope: "x"})
    assert poimen.pauses.all() == []


LISTS: dict[str, tuple[Callable[[Poimen, Any], Any], str]] = {
    "completed_tasks": (lambda p, v: p.snapshots.create("w", completed_tasks=v), "completed_tasks: expected a list of"),
    "pending_tasks": (lambda p, v: p.snapshots.create("w", pending_tasks=v), "pending_tasks: expected a list of"),
    "failed_tasks": (lambda p, v: p.snapshots.create("w", failed_tasks=v), "failed_tasks: expected a list of"),
    "map ids": (lambda p, v: p.dispatch(p.map("double", [1, 2, 3], ids=v)), "map: ids: expected a list of item ids"),
    "item tags": (
        lambda p, v: p.dispatch([Item(p.celery.tasks["double"].s(1), tags=v)]),
        "item .*tags: expected a list of texts",
    ),
    "cache tags": (lambda p, v: p.cache.put(CacheKey("a", "t", "h", "m"), 1, tags=v), "tags: expected a list of texts"),
    "files_modified": (
        lambda p, v: p.audit.implementer_change(action="a", files_modified=v),
        "files_modified: expected a list of paths",
    ),
    "record_many": (lambda p, v: p.audit.record_many(v), "events?: expected a"),
}


@pytest.mark.parametrize("value", NO_LISTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", LISTS)
def test_no_list(poimen: Poimen, name: str, value: Any) -> None:
    """A text, bytes, a dict or a number in place of a list is refused, and nothing is written."""
    call, said = LISTS[name]
    before = poimen.audit.count()
    with pytest.raises(InvalidArgument, match=said):
        call(poimen, value)
    assert (poimen.audit.count(), len(poimen.batches()), poimen.snapshots.all()) == (before, 1, [])


def test_what_is_a_list(poimen: Poimen) -> None:
    """Tuples, generators, keys of a dict, and where the order does not count sets, are as good as lists."""
    made = poimen.snapshots.create("w", completed_tasks={"b"}, pending_tasks=(t for t in ("c", "d")), failed_tasks=())
    assert (made.completed_tasks, made.pending_tasks, made.failed_tasks) == (("b",), ("c", "d"), ())
    rows = {"x": 1, "y": 2}
    batch = poimen.dispatch(poimen.map("double", rows.values(), ids=rows.keys()))
    assert list(poimen.store.reads.field(batch.id, "total")) == [b"2"]
    with pytest.raises(InvalidArgument, match=r"in the same order, got \{'y'\}"):
        poimen.dispatch(poimen.map("double", [1], ids={"y"}))


@pytest.mark.parametrize("value", ["abc", 5, ["a"], {"a"}], ids=lambda value: type(value).__name__)
def test_metadata_of_a_batch(poimen: Poimen, value: Any) -> None:
    """The metadata of a batch are a dict."""
    with pytest.raises(InvalidArgument, match=r"^metadata: expected a dict, got "):
        poimen.dispatch(poimen.map("double", [1]), metadata=value)
    assert len(poimen.batches()) == 1


def test_an_option_of_query_is_no_filter(poimen: Poimen) -> None:
    """`trail` reads all: `limit` and its like are named as no filters."""
    for name in ("limit", "after", "newest_first"):
        with pytest.raises(InvalidArgument, match=f"filter '{name}' is not known"):
            poimen.audit.trail(**{name: 1})
