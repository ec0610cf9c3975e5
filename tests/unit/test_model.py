"""The frozen values that rooms share."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from poimen_tasks.model import BatchState, BatchStatus, ErrorInfo, Item, ItemStatus, Outcome, moment

NOON = datetime(2025, 11, 29, 12, tzinfo=UTC)


def outcome(**changes: Any) -> Outcome[Any]:
    fields = {
        "item_id": "7",
        "status": ItemStatus.SUCCEEDED,
        "result": [1],
        "error": None,
        "started": NOON.timestamp(),
        "duration": 1.5,
        "queue_wait": 0.25,
        "attempts": 2,
        "worker": "w@host",
        "cached": False,
        "ordinal": 41,
    }
    return Outcome((fields | changes).values())


def status(**changes: Any) -> BatchStatus:
    counts = ("pending", "delayed", "waiting", "running", "succeeded", "failed", "cancelled", "skipped", "cached")
    fields: dict[str, Any] = dict.fromkeys(counts, 0) | {
        "batch_id": "b",
        "workflow": "w",
        "stage": "s",
        "state": BatchState.RUNNING,
        "total": 0,
        "created_at": NOON,
        "started_at": None,
        "finished_at": None,
        "concurrency": 10,
    }
    return BatchStatus(**fields | changes)


@given(st.integers(-(10**15), 10**15))
def test_moment_is_utc_and_exact(microseconds: int) -> None:
    """`moment` gives the aware UTC datetime of a time on the wire, for centuries around 1970."""
    instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    found = moment(microseconds / 1e6)
    assert found is not None
    assert found.utcoffset() == timedelta(0)
    assert abs(found - instant) <= timedelta(microseconds=1)


def test_moment_of_nothing() -> None:
    """What never happened has no moment."""
    assert moment(None) is None


def test_outcome_names_its_fields() -> None:
    """An outcome tells start, end, duration, result, error, wait, worker and attempt of an item (promise D4)."""
    found = outcome()
    assert (found.item_id, found.status, found.result, found.error) == ("7", ItemStatus.SUCCEEDED, [1], None)
    assert (found.started_at, found.finished_at) == (NOON, NOON + timedelta(seconds=1.5))
    assert (found.duration, found.queue_wait, found.attempts) == (1.5, 0.25, 2)
    assert (found.worker, found.cached, found.cursor, found.ok) == ("w@host", False, 41, True)


def test_outcome_is_a_bare_tuple() -> None:
    """An outcome takes no more memory than its tuple: a million are made in one read."""
    found = outcome()
    assert isinstance(found, tuple)
    assert not hasattr(found, "__dict__")


def test_outcome_pickles() -> None:
    """An outcome can be handed to another process."""
    assert pickle.loads(pickle.dumps(outcome())) == outcome()  # noqa: S301 - our own bytes


def test_outcome_is_frozen() -> None:
    """No field of an outcome can be set."""
    with pytest.raises(AttributeError):
        outcome().result = 1


def test_outcome_that_never_started() -> None:
    """An item that was cancelled before it started has neither a start nor an end."""
    found = outcome(status=ItemStatus.CANCELLED, started=None, duration=0.0)
    assert (found.started_at, found.finished_at, found.ok) == (None, None, False)
    assert found.to_dict()["started_at"] is None


def test_outcome_to_dict_is_plain() -> None:
    """`Outcome.to_dict` is ready for JSON, the error included."""
    error = ErrorInfo(type="ValueError", message="no", traceback="...")
    data = outcome(status=ItemStatus.FAILED, result=None, error=error).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["error"] == {"type": "ValueError", "message": "no", "traceback": "..."}
    assert data["status"] == "failed"
    assert data["finished_at"] == "2025-11-29T12:00:01.500000+00:00"


def test_outcome_repr_tells_result_or_error() -> None:
    """A look at an outcome shows the result of a success and the error of a failure."""
    assert repr(outcome()) == "Outcome('7', succeeded, [1])"
    failed = repr(outcome(status=ItemStatus.FAILED, error=ErrorInfo(type="ValueError", message="no")))
    assert failed.startswith("Outcome('7', failed, ")
    assert "ValueError" in failed


def test_error_info_text() -> None:
    """An error reads as its type and message, or its type alone when it said nothing."""
    assert str(ErrorInfo(type="ValueError", message="no")) == "ValueError: no"
    assert str(ErrorInfo(type="ValueError", message="")) == "ValueError"


@pytest.mark.parametrize("state", BatchState)
def test_final_states(state: BatchState) -> None:
    """Exactly completed, failed and cancelled batches are over; a stalled one can be continued."""
    assert state.is_over is (state.value in {"completed", "failed", "cancelled"})
    assert status(state=state).is_over is state.is_over


def test_status_counts_the_finished() -> None:
    """Finished are the items with an outcome, whatever it is (fault A21)."""
    found = status(total=20, pending=10, succeeded=4, failed=3, cancelled=2, skipped=1, cached=2)
    assert found.finished == found.total - found.pending == 10


def test_status_to_dict_is_plain() -> None:
    """`BatchStatus.to_dict` is ready for JSON and adds the finished."""
    data = status(total=1, succeeded=1, unserved_queues=("gpu",)).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["created_at"], data["finished_at"]) == (NOON.isoformat(), None)
    assert (data["state"], data["unserved_queues"], data["finished"]) == ("running", ["gpu"], 1)


def test_values_are_frozen() -> None:
    """No attribute of a status, an error or an item can be set."""
    item = Item(Celery(set_as_current=False).signature("t"))
    for value, name in ((status(), "total"), (ErrorInfo(type="E", message=""), "type"), (item, "id")):
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, 1)


def test_item_labels_are_keywords() -> None:
    """An item's labels are keyword-only and all of them optional."""
    signature = Celery(set_as_current=False).signature("t")
    bare = Item(signature)
    assert (bare.id, bare.task_id, bare.model_id, bare.tags, bare.limit_key) == (None, None, None, (), None)
    with pytest.raises(TypeError):
        Item(signature, "7")  # type: ignore[misc]
