"""A user's code, for a type checker only: `test_typing.py` reads what is revealed and where errors are.

`# R: X` is what a checker says with celery-types installed, `# R: X | Y` with Y where it is not; `# E: code` is an
error, with celery-types. Nothing here is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, reveal_type

from celery import Celery, Task, chord, group, shared_task

from poimen_tasks import Batch, Item, Outcome, Poimen, RetryPolicy

if TYPE_CHECKING:
    from celery.canvas import Signature

poimen = Poimen("shop")


@poimen.task
def count(text: str) -> dict[str, int]:
    """One argument."""
    return {text: 1}


@poimen.task(bind=True, retry=RetryPolicy(max_attempts=2))
def weigh(self: Task[Any, Any], text: str, unit: str = "g", *, exact: bool = False) -> float:
    """Bound; further arguments have defaults."""
    return 1.0


@shared_task
def add(x: int, y: int) -> int:
    """Two arguments."""
    return x + y


@Celery("elsewhere").task
def untyped(value):  # type: ignore[no-untyped-def]
    """No annotations."""
    return value


def function(text: str) -> int:
    """No task."""
    return 1


texts: list[str] = []
numbers: list[int] = []


def maps() -> None:
    """`map` and `starmap` know what the task returns, and what it takes."""
    reveal_type(poimen.map(count, ["a"]))  # R: Map[dict[str, int]] | Map[Any]
    reveal_type(poimen.map(count, texts, ids=["1"]))  # R: Map[dict[str, int]] | Map[Any]
    reveal_type(poimen.map(count, (str(n) for n in range(3))))  # R: Map[dict[str, int]] | Map[Any]
    reveal_type(poimen.map(weigh, texts))  # R: Map[float] | Map[Any]
    reveal_type(poimen.map(untyped, numbers))  # R: Map[Any]
    reveal_type(poimen.map("shop.count", numbers))  # R: Map[Any]
    reveal_type(poimen.starmap(add, [(1, 2)]))  # R: StarMap[int] | StarMap[Any]
    reveal_type(poimen.starmap(add, [[1, 2]]))  # R: StarMap[int] | StarMap[Any]
    reveal_type(poimen.starmap(add, [{"x": 1, "y": 2}]))  # R: StarMap[int] | StarMap[Any]
    reveal_type(poimen.starmap("shop.add", numbers))  # R: StarMap[Any]


def dispatches() -> None:
    """A batch knows the type of its results."""
    reveal_type(poimen.dispatch(poimen.map(count, texts)))  # R: Batch[dict[str, int]] | Batch[Any]
    reveal_type(poimen.dispatch(poimen.starmap(add, [(1, 2)])))  # R: Batch[int] | Batch[Any]
    reveal_type(poimen.dispatch([count.s("a"), count.s("b")]))  # R: Batch[dict[str, int]] | Batch[Any]
    reveal_type(poimen.dispatch(add.s(n, n) for n in numbers))  # R: Batch[int] | Batch[Any]
    reveal_type(poimen.dispatch([Item(add.s(1, 2), id="sum")]))  # R: Batch[int] | Batch[Any]
    reveal_type(poimen.dispatch([count.s("a"), add.s(1, 2)]))  # R: Batch[object] | Batch[Any]
    reveal_type(poimen.dispatch(group(count.s("a"), add.s(1, 2))))  # R: Batch[Any]
    reveal_type(poimen.dispatch(chord(group(count.s("a")), add.s(1))))  # R: Batch[Any]
    reveal_type(poimen.dispatch(count.map(texts)))  # R: Batch[Any]
    reveal_type(poimen.dispatch(calls(), priority="high", on_existing="raise"))  # R: Batch[Any]
    reveal_type(poimen.batch("nightly"))  # R: Batch[Any]


def calls() -> Iterator[Signature[Any]]:
    """Signatures of who knows what."""
    yield untyped.s(1)


def reads() -> None:
    """What a batch gives back has the type."""
    batch = poimen.dispatch(poimen.map(count, texts))
    reveal_type(batch.outcomes())  # R: Iterator[Outcome[dict[str, int]]] | Iterator[Outcome[Any]]
    reveal_type(next(batch.outcomes()).result)  # R: dict[str, int] | Any
    reveal_type(batch.outcome("0"))  # R: Outcome[dict[str, int]] or None | Outcome[Any] or None
    reveal_type(batch.result("0"))  # R: dict[str, int] | Any
    report = batch.wait(timeout=1)
    reveal_type(report)  # R: BatchReport[dict[str, int]] | BatchReport[Any]
    reveal_type(report.results)  # R: Mapping[str, dict[str, int]] | Mapping[str, Any]
    with batch as same:
        reveal_type(same)  # R: Batch[dict[str, int]] | Batch[Any]
    reveal_type(count("a"))  # R: dict[str, int] | Any
    reveal_type(add.s(1, 2))  # R: Signature[int] | Any


def bare(batch: Batch, outcome: Outcome, item: Item) -> None:
    """Without a parameter the names may be used as before."""
    reveal_type(batch.result("0"))  # R: Any
    reveal_type(outcome.result)  # R: Any
    reveal_type(poimen.dispatch([item]))  # R: Batch[Any]


def general(batch: Batch[object]) -> None:
    """Takes a batch of anything."""


def mistakes() -> None:
    """What cannot work is an error already here."""
    poimen.map(count, [1, 2])  # E: misc
    poimen.map(count, numbers)  # E: misc
    poimen.map(add, [1])  # E: arg-type
    poimen.map(function, texts)  # E: call-overload
    poimen.starmap(add, [1])  # E: list-item
    poimen.dispatch(5)  # E: call-overload
    poimen.dispatch(count)  # E: call-overload
    poimen.dispatch([count.s("a")], priority="urgent")  # E: call-overload
    poimen.dispatch([count.s("a")], on_existing="replace")  # E: call-overload
    poimen.dispatch([count.s("a")], colour="blue")  # E: call-overload
    wrong: str = poimen.dispatch(poimen.map(count, texts)).result("0")  # E: assignment
    general(poimen.dispatch(poimen.map(count, texts)))
    batch: Batch[int] = poimen.dispatch(poimen.map(count, texts))  # E: arg-type
    _ = (wrong, batch)
