"""Canvas by canvas: run natively it ends as Celery documents, dispatched it ends the same or is refused by name.

A row of `canvases.CASES` is one canvas. All are started together and end on one worker; each then has two tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import group, signature
from celery.exceptions import TimeoutError as NoResult
from celery.result import GroupResult

from poimen_tasks import PoimenError
from tests.acceptance.canvases import CASES, PUBLISHED, SAME, Case, Error, Left, Refused
from tests.conftest import ROOT, Workers, eventually

DEADLINE = 20


# --- running them --------------------------------------------------------------------------------------------------


def value_of(result: Any) -> Any:
    """What a native result is in the end, an `Error` for a failure."""
    if isinstance(result, GroupResult):
        return [value_of(one) for one in result.results]
    try:
        value = result.get(timeout=DEADLINE, propagate=False)
    except NoResult:
        return Error("Hangs")
    return Error(type(value).__name__, str(value)) if isinstance(value, BaseException) else value


def outcome_of(steps: ModuleType, batch: Any, work: Any) -> Any:
    """What a dispatched canvas is in the end: a chord's body's result, a list for anything else."""
    try:
        report = batch.wait(DEADLINE)
        if isinstance(work, dict) and work.get("task") == "celery.chord":
            return body_of(steps, batch, work["kwargs"]["body"])
    except PoimenError as error:
        return Error(type(error).__name__, str(error))
    found = {one.item_id: one for one in batch.outcomes()}
    ended = [found[name] for name in sorted(found, key=lambda name: (len(name), name))]
    assert len(ended) == report.total
    return [one.result if one.ok else Error(one.error.type, one.error.message) for one in ended]


def body_of(steps: ModuleType, batch: Any, body: Any) -> Any:
    """The result of a chord's body; one that is a canvas was published, its id is what there is of it."""
    batch.wait(DEADLINE, raise_on_error=True)
    given = batch.callback_result(timeout=DEADLINE)
    if not (isinstance(given, str) and re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", given)):
        return given
    return PUBLISHED if body["task"] == "celery.group" else value_of(steps.app.AsyncResult(given))


class Kit:
    """The app's module for one case, with a file of its own for notes."""

    def __init__(self, steps: ModuleType, notes: str) -> None:
        self._steps = steps
        self.notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)


@dataclass
class Ran:
    """How one side of a case ended."""

    value: Any
    notes: list[str]


class Side:
    """All cases, started on one side."""

    def __init__(
        self, steps: ModuleType, directory: Path, start: Callable[[Any], Any], end: Callable[..., Any]
    ) -> None:
        self.steps = steps
        self._start, self._end = start, end
        self._paths = {name: directory / f"{number}.txt" for number, name in enumerate(CASES)}
        self._made: dict[str, Any] = {}
        self._going: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        """Start one case; what is refused is its end."""
        try:
            self._made[name] = CASES[name].make(Kit(self.steps, str(self._paths[name])))
            self._going[name] = self._start(self._made[name])
        except Exception as error:  # noqa: BLE001 - whatever it is, the row says which
            self._going[name] = Refused(type(error).__name__, str(error))

    def end(self) -> dict[str, Any]:
        """Wait for all."""
        return {
            name: going if isinstance(going, Refused) else self._end(going, self._made[name])
            for name, going in self._going.items()
        }

    def notes(self, name: str) -> list[str]:
        """The lines that a case has left."""
        path = self._paths[name]
        return sorted(path.read_text().splitlines()) if path.exists() else []


def apply_native(steps: ModuleType, canvas: Any) -> Any:
    """Start a canvas natively."""
    made = canvas if hasattr(canvas, "apply_async") else signature(canvas, app=steps.app)
    return made.apply_async()


@pytest.fixture(scope="module")
def ran(steps: ModuleType, crew: Workers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Ran]]:
    """Every case on both sides, ended."""
    native = Side(
        steps,
        tmp_path_factory.mktemp("native"),
        lambda made: apply_native(steps, made),
        lambda going, _: value_of(going),
    )
    dispatched = Side(
        steps,
        tmp_path_factory.mktemp("dispatched"),
        steps.poimen.dispatch,
        lambda going, made: outcome_of(steps, going, made),
    )
    for name, case in CASES.items():
        for side, expected in ((native, case.native), (dispatched, case.dispatched)):
            if not isinstance(expected, Left):
                side.begin(name)
    values = {"native": native.end(), "dispatched": dispatched.end()}
    settle(steps, values, native, dispatched)
    sides = {"native": native, "dispatched": dispatched}
    return {
        side: {name: Ran(value, sides[side].notes(name)) for name, value in found.items()}
        for side, found in values.items()
    }


def settle(steps: ModuleType, values: Any, native: Side, dispatched: Side) -> None:
    """Wait for the notes that are due, then until both processes have done what came before."""
    for name, case in CASES.items():
        for side, key, expected in (
            (native, "native", case.notes),
            (dispatched, "dispatched", expected_of(case)[1]),
        ):
            if name in values[key]:
                try:
                    eventually(lambda s=side, n=name, e=expected: len(s.notes(n)) >= len(e), timeout=DEADLINE / 4)
                except AssertionError:
                    continue  # its test tells
    group(steps.marked.s(0, "/dev/null", 0.3) for _ in range(2)).apply_async().get(timeout=DEADLINE)


def expected_of(case: Case) -> tuple[Any, list[str]]:
    """The value and the notes of the dispatched side."""
    value = case.native if case.dispatched is SAME else case.dispatched
    notes = case.notes if case.dispatched_notes is SAME else case.dispatched_notes
    return value, [] if isinstance(value, Refused) else notes


def differs(expected: Any, found: Any) -> str:
    """Where a value is not what is expected; empty when it is."""
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return f"{len(found)} values instead of {len(expected)}: {found!r}"
        return "; ".join(filter(None, map(differs, expected, found)))
    if isinstance(expected, Error) and type(expected) is type(found):
        same = expected.type == found.type and re.fullmatch(expected.message, found.message, re.DOTALL)
        return "" if same else f"{found!r} instead of {expected!r}"
    return "" if type(expected) is type(found) and expected == found else f"{found!r} instead of {expected!r}"


def check(ran: Ran, expected: Any, notes: list[str]) -> None:
    """The value and the notes are as the row says."""
    assert not differs(expected, ran.value)
    assert len(ran.notes) == len(notes), ran.notes
    for pattern, note in zip(notes, ran.notes, strict=True):
        assert re.fullmatch(pattern, note), ran.notes


def cases(side: str) -> list[str]:
    """The names of the cases that run on a side."""
    return [name for name, case in CASES.items() if not isinstance(getattr(case, side), Left)]


def test_the_page_says_what_the_cases_say() -> None:
    """Each row of the page about canvases names a case, and says of it what its row here says (promise D1)."""
    page = (ROOT / "docs" / "canvas.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (as native|differs|refused) \| `(.*)` \|$", page, re.MULTILINE)
    assert len(rows) == page.count("\n| ") - 1
    for said, name in rows:
        value = CASES[name].dispatched
        found = "as native" if value is SAME else "refused" if isinstance(value, Refused) else "differs"
        assert (name, said) == (name, found)


@pytest.mark.parametrize("name", cases("native"))
def test_native(ran: dict[str, dict[str, Ran]], name: str) -> None:
    """A canvas that is applied ends as Celery documents it, with this app and its settings (fault A12)."""
    check(ran["native"][name], CASES[name].native, CASES[name].notes)


@pytest.mark.parametrize("name", cases("dispatched"))
def test_dispatched(ran: dict[str, dict[str, Ran]], name: str) -> None:
    """A canvas that is dispatched ends as it does natively or as its row says, or is refused by name (promise D1)."""
    check(ran["dispatched"][name], *expected_of(CASES[name]))
