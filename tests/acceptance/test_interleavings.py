"""What happens when things change under a lane, a retry or a callback."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.conftest import eventually

pytestmark = pytest.mark.usefixtures("lanes")


def test_a_partition_that_comes_while_a_lane_works(shop: ModuleType) -> None:
    """A later slice with another task, or another limit, is run by lanes that began before it was written."""
    batch = shop.poimen.batch("grows")

    def work() -> Any:
        for _ in range(256):
            yield shop.nap.s(0.005)
        eventually(lambda: batch.status().running > 0)
        for number in range(10):
            yield shop.add.s(number, 0)
        yield shop.hard_limited.s(5.0)

    report = shop.poimen.dispatch(work(), batch_id="grows", concurrency=2).wait(timeout=40)
    assert (report.succeeded, report.failed) == (266, 1)
    assert report.errors["266"].type == "TimeLimitExceeded"
    store = shop.poimen.store
    lost = [
        fields for _, fields in store.client.redis.xrange(store.keys.build("audit")) if fields[b"t"] == b"lane.lost"
    ]
    assert not any(b"grows" in fields[b"h"] for fields in lost)


def test_retrying_again_and_again_while_it_runs(shop: ModuleType) -> None:
    """`retry_failed` in a loop beside a running round puts no item back twice, and every item ends once more."""
    batch = shop.poimen.dispatch([shop.boom.s(str(number)) for number in range(1200)])
    batch.wait(timeout=60)
    retried = batch.retry_failed()
    again = sum(batch.retry_failed() for _ in range(3))
    report = batch.wait(timeout=60)
    assert retried == 1200
    assert again <= 3 * 1200
    assert report.failed == 1200
    assert shop.poimen.store.scripts.check_batch(batch.id)[b"good"]


def test_a_very_long_message_is_cut(shop: ModuleType) -> None:
    """An error's text is recorded up to a length, so that a few failures do not fill the store."""
    outcome = next(shop.poimen.dispatch([shop.verbose_failure.s(3_000_000)]).outcomes(timeout=30))
    assert outcome.error.type == "ValueError"
    assert len(outcome.error.message) < 20_000
    assert "3,000,000 characters" in outcome.error.message


def test_callbacks_that_dispatch_get_batches_of_their_own(shop: ModuleType) -> None:
    """The batches that two callbacks of one batch dispatch have different ids."""
    batch = shop.poimen.dispatch(
        [shop.add.s(1, 1)], on_success=shop.callback_dispatches.s(), on_complete=shop.callback_dispatches.s()
    )
    batch.wait(timeout=20)
    made = {batch.callback_result(kind, timeout=20) for kind in ("on_success", "on_complete")}
    assert len(made) == 2
    for name in made:
        assert shop.poimen.batch(name).wait(timeout=20).succeeded == 1


def test_a_callback_that_did_not_run_says_why(shop: ModuleType) -> None:
    """Asking for the result of a callback of the other kind is a clear error."""
    batch = shop.poimen.dispatch([shop.boom.s("x")], on_success=shop.total.s())
    batch.wait(timeout=20)
    with pytest.raises(LookupError, match="did not run: the batch failed"):
        batch.callback_result(timeout=10)
