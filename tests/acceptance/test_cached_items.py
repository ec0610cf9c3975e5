"""Items of cached tasks on real workers: computed once, wherever they are asked for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from poimen_tasks import MISSING, InvalidArgument, Item, ItemStatus, UncacheableArguments
from tests.conftest import Workers, eventually

pytestmark = pytest.mark.usefixtures("lanes")


def runs(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines() if path.exists() else [])


def test_a_second_batch_runs_no_body(shop: ModuleType, notes: Path) -> None:
    """Calls that were computed before end at once, say so, and leave workers alone (promise C9)."""
    calls = [(str(notes), str(n)) for n in range(300)]
    first = shop.poimen.dispatch(shop.poimen.starmap(shop.priced, calls)).wait(timeout=30)
    assert (first.succeeded, first.stats()["cached"]) == (300, 0)
    batch = shop.poimen.dispatch(shop.poimen.starmap(shop.priced, calls))
    second = batch.wait(timeout=30)
    assert dict(second.results) == dict(first.results)
    assert (second.stats()["cached"], batch.status().cached) == (300, 300)
    assert all(outcome.cached and outcome.ok for outcome in batch.outcomes(timeout=30))
    assert runs(notes) == Counter(str(n) for n in range(300))


def test_equal_calls_at_one_time_run_once(shop: ModuleType, notes: Path) -> None:
    """Equal calls of two batches at one time run one body, and those that wait hold no slot (promise C9, fault G01)."""
    one, two = (
        shop.poimen.dispatch(shop.poimen.starmap(shop.priced, [(str(notes), "same", 0.4)] * 40), concurrency=4)
        for _ in range(2)
    )
    others = shop.poimen.dispatch(shop.poimen.starmap(shop.add, [(1, 1)] * 4))
    assert others.wait(timeout=30).succeeded == 4
    for batch in (one, two):
        assert set(batch.wait(timeout=30).results.values()) == {"price of same"}
    assert runs(notes) == {"same": 1}


def test_the_call_counts_not_its_spelling(shop: ModuleType, notes: Path) -> None:
    """Positional, keyword and default arguments make one key; other types make another (promise C1, fault G03)."""
    path = str(notes)
    batch = shop.poimen.dispatch(
        [
            shop.priced.s(path, "x"),
            shop.priced.s(path, name="x"),
            shop.priced.s(seconds=0.0, name="x", path=path),
            shop.priced.s(path, "x", 0),
        ]
    )
    assert batch.wait(timeout=30).succeeded == 4
    assert runs(notes) == {"x": 2}


def test_a_retried_computation_is_kept(shop: ModuleType, notes: Path) -> None:
    """A leader that fails and retries hands on, and the value counts once it is there (protocol 8)."""
    calls = [(str(notes), "x")] * 3
    report = shop.poimen.dispatch(shop.poimen.starmap(shop.priced_third_time, calls), concurrency=3).wait(timeout=30)
    assert set(report.results.values()) == {"x"}
    again = shop.poimen.dispatch(shop.poimen.starmap(shop.priced_third_time, calls)).wait(timeout=30)
    assert again.stats()["cached"] == 3


def test_failures_are_not_cached(shop: ModuleType, notes: Path) -> None:
    """A failing call fails for each item that asked, and nobody waits for ever (protocol 8)."""
    calls = [(str(notes), "x")] * 6
    report = shop.poimen.dispatch(shop.poimen.starmap(shop.priced_never, calls), concurrency=2).wait(timeout=30)
    assert report.failed == 6
    assert {error.type for error in report.errors.values()} == {"ValueError"}
    assert shop.poimen.cache.stats("tests.acceptance.shop.priced_never").size == 0


def test_labels_find_it_again(shop: ModuleType, notes: Path) -> None:
    """Results are invalidated by activity, task id, model and tag, and found by the key of a call (promise C7)."""
    item = Item(shop.priced.s(str(notes), "x"), id="a", task_id="T1.1", model_id="gpt", tags=["red"])
    cache = shop.poimen.cache
    for number, scope in enumerate(
        ({"task_id": "T1.1"}, {"model_id": "gpt"}, {"tag": "red"}, {"activity": shop.priced.name}), start=1
    ):
        shop.poimen.dispatch([item]).wait(timeout=30)
        assert runs(notes) == {"x": number}
        assert cache.invalidate(**scope) >= 1
    shop.poimen.dispatch([shop.priced.s(str(notes), "y")]).wait(timeout=30)
    key = cache.key_for(shop.priced, str(notes), name="y")
    assert cache.get(key) == "price of y"
    cache.invalidate(key=key)
    assert cache.get(key) is MISSING


def test_an_entry_is_found_by_its_key(shop: ModuleType, notes: Path) -> None:
    """The key of an entry is the one it is filed under, also when its task id is but a label (promises C1, C6)."""
    cache = shop.poimen.cache
    shop.poimen.dispatch([Item(shop.priced.s(str(notes), "x"), task_id="T2.1")]).wait(timeout=30)
    entry = next(entry for entry in cache.entries()[0] if entry.task_id == "T2.1")
    assert entry.key == cache.key_for(shop.priced, str(notes), "x")
    assert cache.get(entry.key) == "price of x"
    assert cache.invalidate(key=entry.key) == 1


def test_a_large_result_reaches_who_waited(shop: ModuleType) -> None:
    """A value of some hundred kilobytes is kept, and comes back the same."""
    calls = [(300_000,)] * 3
    one = shop.poimen.dispatch(shop.poimen.starmap(shop.sized, calls)).wait(timeout=30)
    two = shop.poimen.dispatch(shop.poimen.starmap(shop.sized, calls)).wait(timeout=30)
    assert len({*one.results.values(), *two.results.values()}) == 1


def test_a_call_without_a_canonical_form(shop: ModuleType, notes: Path) -> None:
    """NaN equals nothing: such a call is refused with its path, or runs uncached if its policy says so (fault G06)."""
    with pytest.raises(UncacheableArguments, match=r'item "1".*name.*NaN'):
        shop.poimen.dispatch(shop.poimen.starmap(shop.priced, [(str(notes), "x"), (str(notes), float("nan"))]))
    assert runs(notes) == {}
    calls = [(str(notes), float("nan"))] * 2
    assert shop.poimen.dispatch(shop.poimen.starmap(shop.priced_anyway, calls)).wait(timeout=30).succeeded == 2
    assert runs(notes) == {"nan": 2}
    assert shop.poimen.cache.stats(shop.priced_anyway.name).uncacheable == 2


def test_a_killed_leader_is_followed(shop: ModuleType, lanes: Workers, notes: Path) -> None:
    """When the process that computes is killed, the next item computes, all get its value (promise C9, fault G02)."""
    batch = shop.poimen.dispatch(shop.poimen.starmap(shop.priced, [(str(notes), "slow", 0.8)] * 5), concurrency=2)
    eventually(lambda: runs(notes) == {"slow": 1})
    for process in lanes.all[0].children():
        process.kill()
    report = batch.wait(timeout=60)
    assert (report.succeeded, set(report.results.values())) == (5, {"price of slow"})
    assert runs(notes)["slow"] == 2


def test_cancelling_ends_what_waits(shop: ModuleType, notes: Path) -> None:
    """Items that wait for another batch's computation are cancelled with their own batch (promise D8)."""
    leader = shop.poimen.dispatch([shop.priced.s(str(notes), "long", 1.0)])
    eventually(lambda: runs(notes) == {"long": 1})
    follower = shop.poimen.dispatch([shop.priced.s(str(notes), "long", 1.0)] * 3)
    eventually(lambda: follower.status().waiting == 3)
    follower.cancel("enough")
    assert {outcome.status for outcome in follower.outcomes(timeout=30)} == {ItemStatus.CANCELLED}
    assert leader.wait(timeout=30).succeeded == 1


def test_links_of_cached_items_run(shop: ModuleType, notes: Path, tmp_path: Path) -> None:
    """An item with a link is served from the cache and its link runs, whether equal calls ran before or run now."""
    linked = tmp_path / "linked"
    call = shop.priced.s(str(notes), "linked", 0.2).set(link=shop.tell.s(str(linked)))
    for done in (2, 4):
        item = Item(call, model_id="m", tags=["linked"])
        assert shop.poimen.dispatch([item, item]).wait(timeout=30).succeeded == 2
        eventually(lambda done=done: runs(linked) == {"'price of linked'": done})  # type: ignore[misc]
    assert runs(notes) == {"linked": 1}
    assert shop.poimen.cache.invalidate(tag="linked") == 1


def test_large_results_land_in_portions(shop: ModuleType) -> None:
    """However many wait for a large result, no entry of the stream holds more than about a megabyte of copies."""
    calls = [(200_000, 0.3)] * 40
    for _ in range(2):
        batch = shop.poimen.dispatch(shop.poimen.starmap(shop.sized, calls))
        assert len(set(batch.wait(timeout=60).results.values())) == 1
        sizes = [len(entry.blob) for entries in shop.poimen.store.reads.entries(batch.id) for entry in entries]
        assert max(sizes) < 1_200_000


def test_more_tags_than_an_entry_holds_are_refused(shop: ModuleType, notes: Path) -> None:
    """Tags that a cached result could not carry are refused at dispatch; as many as are allowed work at any length."""
    tags = [f"{number:02}" + "\N{SNOWMAN}" * 254 for number in range(33)]
    with pytest.raises(InvalidArgument, match=r'item "0": tags: expected at most 32, got 33'):
        shop.poimen.dispatch([Item(shop.priced.s(str(notes), "x"), tags=tags)])
    for _ in range(2):
        shop.poimen.dispatch([Item(shop.priced.s(str(notes), "x"), tags=tags[:32])]).wait(timeout=30)
    assert runs(notes) == {"x": 1}


def test_ten_thousand_known_calls(shop: ModuleType, notes: Path) -> None:
    """A batch of ten thousand calls that are all known runs no body, and says so of each (promise C9)."""
    calls = [(str(notes), number) for number in range(10_000)]
    shop.poimen.dispatch(shop.poimen.starmap(shop.doubled, calls), concurrency=2).wait(timeout=90)
    assert sum(runs(notes).values()) == 10_000
    report = shop.poimen.dispatch(shop.poimen.starmap(shop.doubled, calls), concurrency=2).wait(timeout=60)
    assert report.stats()["cached"] == report.succeeded == 10_000
    assert report.results["9999"] == 19_998
    assert sum(runs(notes).values()) == 10_000


def test_items_that_lean_on_each_other_end(shop: ModuleType, notes: Path) -> None:
    """Two bodies that ask for each other's result at one time both end: no circle of waiting (protocol 8)."""
    calls = [(str(notes), "a", "b"), (str(notes), "b", "a")]
    report = shop.poimen.dispatch(shop.poimen.starmap(shop.leans_on, calls), concurrency=2).wait(timeout=30)
    assert report.succeeded == 2
    assert all(result.endswith("!") for result in report.results.values())
