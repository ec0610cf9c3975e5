"""What a body may do inside an item: retry, give up, exceed its time, leave, misbehave."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from poimen_tasks import BatchState, Item, ItemStatus, Outcome
from tests.conftest import Workers, eventually

pytestmark = pytest.mark.usefixtures("lanes")


def lines(path: Path) -> list[str]:
    """The lines that bodies left."""
    return path.read_text().splitlines() if path.exists() else []


def run(shop: ModuleType, signature: object) -> Outcome:
    """Run one call as a batch and give its outcome."""
    return next(iter(shop.poimen.dispatch([signature]).outcomes(timeout=30)))


def test_the_policy_retries_with_backoff(shop: ModuleType, notes: Path) -> None:
    """A body that fails twice succeeds at its third attempt, and the outcome counts them (promise R1, fault A11)."""
    outcome = run(shop, shop.third_time.s(str(notes)))
    assert (outcome.status, outcome.result, outcome.attempts) == (ItemStatus.SUCCEEDED, 3, 3)


@pytest.mark.parametrize(
    ("kind", "runs", "name"),
    [("connection", 5, "ConnectionError"), ("timeout", 1, "TimeoutError"), ("value", 1, "ValueError")],
)
def test_only_errors_worth_it_are_retried(shop: ModuleType, notes: Path, kind: str, runs: int, name: str) -> None:
    """`retry_on` and `never_on` decide which errors get another attempt (promise R1)."""
    outcome = run(shop, shop.never_on_timeout.s(str(notes), kind))
    assert outcome.error.type == name
    assert (outcome.attempts, len(lines(notes))) == (runs, runs)


def test_the_policy_counts_for_plain_calls_too(shop: ModuleType, notes: Path) -> None:
    """A plain Celery message of the same task is retried by the same policy (promise R1)."""
    assert shop.third_time.delay(str(notes)).get(timeout=30) == 3


def test_self_retry_with_new_arguments(shop: ModuleType, notes: Path) -> None:
    """`self.retry(args=…)` runs the same item again with the new arguments; no message of its own is published."""
    outcome = run(shop, shop.retries_itself.s(str(notes), 0))
    assert (outcome.result, outcome.attempts) == (2, 3)
    assert lines(notes) == ["0 0", "1 1", "2 2"]


def test_self_retry_obeys_max_retries(shop: ModuleType) -> None:
    """Celery's own `max_retries` ends explicit retries, with the error that was given."""
    outcome = run(shop, shop.retries_too_often.s())
    assert (outcome.error.type, outcome.attempts) == ("KeyError", 2)


def test_a_retry_that_does_not_throw_is_a_retry(shop: ModuleType, notes: Path) -> None:
    """`retry(throw=False)` does not count as a success of the first run."""
    outcome = run(shop, shop.retries_quietly.s(str(notes)))
    assert (outcome.result, outcome.attempts, len(lines(notes))) == ("second", 2, 2)


def test_autoretry_for(shop: ModuleType, notes: Path) -> None:
    """`autoretry_for` works in an item as in a message."""
    outcome = run(shop, shop.autoretried.s(str(notes)))
    assert (outcome.result, outcome.attempts) == (2, 2)


def test_ignore_skips_the_item(shop: ModuleType) -> None:
    """`raise Ignore` ends the item as skipped, and the batch ends."""
    assert run(shop, shop.ignored.s()).status is ItemStatus.SKIPPED


def test_reject(shop: ModuleType) -> None:
    """`Reject` fails the item; with requeue it is tried again a few times first (fault B11)."""
    outcome = run(shop, shop.rejected.s(requeue=False))
    assert (outcome.status, outcome.error.type, outcome.attempts) == (ItemStatus.FAILED, "Reject", 1)


def test_an_unserialisable_result_fails_its_item(shop: ModuleType) -> None:
    """The error names the path to the value that does not travel (fault F06)."""
    outcome = run(shop, shop.unserialisable.s())
    assert outcome.error.type == "SerializationError"
    assert "rows[1]" in outcome.error.message
    assert "set" in outcome.error.message


def test_soft_time_limit(shop: ModuleType) -> None:
    """The soft limit raises in the body; items within it are untouched (fault B11)."""
    batch = shop.poimen.dispatch([shop.soft_limited.s(5.0), shop.soft_limited.s(0.0)])
    report = batch.wait(timeout=30)
    assert report.errors["0"].type == "SoftTimeLimitExceeded"
    assert report.results["1"] == "done"


def test_hard_time_limit_counts_though_the_body_swallows_it(shop: ModuleType) -> None:
    """A body that catches everything does not escape its hard limit (fault B11)."""
    outcome = run(shop, shop.hard_limited.s(5.0))
    assert (outcome.status, outcome.error.type) == (ItemStatus.FAILED, "TimeLimitExceeded")


def test_countdown_and_expires(shop: ModuleType, notes: Path) -> None:
    """A countdown delays its item (fault C02); one that is late is skipped when it expires."""
    batch = shop.poimen.dispatch(
        [shop.add.s(1, 1).set(countdown=0.6), shop.add.s(2, 2), shop.add.s(3, 3).set(countdown=0.6, expires=0.1)]
    )
    assert batch.status().delayed == 2
    outcomes = {outcome.item_id: outcome for outcome in batch.outcomes(timeout=20)}
    assert outcomes["0"].result == 2
    assert outcomes["0"].started_at.timestamp() - outcomes["1"].started_at.timestamp() > 0.3
    assert (outcomes["2"].status, outcomes["2"].error.type) == (ItemStatus.SKIPPED, "Expired")


def test_links_run_per_item(shop: ModuleType, notes: Path) -> None:
    """`link` and `link_error` of a signature run for its own item."""
    good = shop.add.s(1, 1).on_error(shop.told.si(str(notes), tag="no "))
    good.link(shop.tell.s(str(notes), tag="linked "))
    bad = shop.boom.s("x").on_error(shop.told.si(str(notes), tag="errback "))
    shop.poimen.dispatch([good, bad]).wait(timeout=20)
    eventually(lambda: set(lines(notes)) == {"linked 2", "errback None"})


def test_cancel_gives_every_item_an_outcome(shop: ModuleType, notes: Path) -> None:
    """After a cancel no item starts, running ones learn of it, and each has an outcome (promise D8, fault E06).

    No id of an item is put on the list of revoked messages that workers keep and hand on (fault E07).
    """
    batch = shop.poimen.dispatch([shop.until_cancelled.s(str(notes)) for _ in range(1200)], concurrency=2)
    eventually(lambda: batch.status().running == 2)
    batch.cancel("enough", "me")
    outcomes = list(batch.outcomes(timeout=20))
    assert len(outcomes) == 1200
    assert {outcome.status for outcome in outcomes} == {ItemStatus.CANCELLED}
    assert len(lines(notes)) == 2
    status = batch.status()
    assert (status.state, status.cancelled, status.running) == (BatchState.CANCELLED, 1200, 0)
    revoked = shop.app.control.inspect(timeout=10, limit=1).revoked()
    assert len(revoked) == 1
    assert not [one for ids in revoked.values() for one in ids if one.startswith(batch.id)]


def test_the_context_manager_cancels_on_an_exception(shop: ModuleType) -> None:
    """An exception in the producer's block cancels the batch and passes on (promise D8)."""
    with (
        pytest.raises(RuntimeError, match="mine"),
        shop.poimen.dispatch(shop.poimen.map(shop.nap, [0.2] * 50)) as batch,
    ):
        raise RuntimeError("mine")
    eventually(lambda: batch.status().state is BatchState.CANCELLED)


def test_nothing_is_left_behind(shop: ModuleType) -> None:
    """After a cancel every key of the batch has a lifetime, and no lease, ticket or due time is left (promise D8)."""
    batch = shop.poimen.dispatch([shop.nap.s(0.1) for _ in range(30)] + [shop.nap.s(1).set(countdown=60)])
    batch.cancel()
    list(batch.outcomes(timeout=20))
    store = shop.poimen.store
    redis, root = store.client.redis, store.keys.root
    for key in redis.scan_iter(f"{root}b:{batch.id}*"):
        assert redis.ttl(key) > 0, key
    for name in ("leases", "tickets", "due", "hungry"):
        assert not any(batch.id.encode() in member for member in redis.zrange(store.keys.build(name), 0, -1))


def test_the_limit_holds_and_can_be_changed(shop: ModuleType, lanes: Workers, notes: Path) -> None:
    """Never more items at once than the limit when they were claimed; a new limit takes effect (promise D2)."""
    batch = shop.poimen.dispatch([shop.marked.s(str(notes), str(i), 0.15) for i in range(14)], concurrency=1)
    eventually(lambda: len(lines(notes)) >= 4)
    assert most_at_once(lines(notes)) == 1
    batch.set_concurrency(2, "me")
    assert batch.wait(timeout=30).succeeded == 14
    assert most_at_once(lines(notes)) == 2


@pytest.mark.parametrize("given", [0, -3])
def test_a_limit_of_zero_or_less_is_the_default(shop: ModuleType, given: int) -> None:
    """0 and negative numbers mean the default, 10 (promise D2)."""
    assert shop.poimen.dispatch([shop.add.s(1, 1)], concurrency=given).status().concurrency == 10


def test_no_limit(shop: ModuleType) -> None:
    """None means as many as the fleet has (promise D2)."""
    batch = shop.poimen.dispatch(shop.poimen.map(shop.nap, [0.1] * 6), concurrency=None)
    assert batch.status().concurrency is None
    report = batch.wait(timeout=20)
    assert report.succeeded == 6
    assert 1 <= report.concurrency <= 2


def test_a_nested_dispatch_is_derived(shop: ModuleType, notes: Path) -> None:
    """A dispatch from inside an item inherits workflow and actor, and gets an id derived from the item."""
    batch = shop.poimen.dispatch([Item(shop.dispatches_inside.s(str(notes)), id="a")], workflow="night", actor="cron")
    inner = shop.poimen.batch(batch.wait(timeout=20).results["a"])
    assert inner.wait(timeout=20).succeeded == 3
    assert inner.status().workflow == "night"
    assert inner.id.startswith(batch.id)


def test_waiting_inside_a_task_is_refused(shop: ModuleType) -> None:
    """A body that waits for a batch that is not over gets an error instead of holding the slot for ever."""
    outcome = run(shop, shop.waits_inside.s())
    assert outcome.result in ("WouldDeadlock", "waited")


def most_at_once(noted: list[str]) -> int:
    """How many bodies were between their start and their end at the same time."""
    running = most = 0
    for line in noted:
        running += 1 if line.startswith("start") else -1
        most = max(most, running)
    return most
