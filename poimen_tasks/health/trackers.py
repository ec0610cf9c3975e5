"""A check of the trackers: what their indexes say is held against the states."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from poimen_tasks.health.batches import MOST_KEYS
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.health.repairs import REPAIR, Repairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from poimen_tasks.store import Store

__all__ = ["check_trackers"]

_SLICE = 200
_WORDS = {
    "damaged": "states that cannot be read: {}",
    "unlisted": "tasks that an index lacks, or has in another place: {}",
    "dead": "tasks that an index has, and that are not there: {}",
    "unindexed": "the list of trackers lacks it",
    "behind": "numbers would be given out once more",
}
_FLAGS = {"unindexed", "behind"}


def check_trackers(
    store: Store, repairs: Repairs | None, progress: Callable[[str], None] = lambda _text: None
) -> Iterator[Finding]:
    """Every tracker with all its tasks.

    Args:
        store: the store.
        repairs: put right what is not; None only looks.
        progress: told what is looked at, for a person who waits.
    """
    names, whole = store.tracker_reads.mentioned(most=MOST_KEYS)
    good = whole
    for name in names:
        progress(f"tracker {name}")
        found = _look(store, name, repairs)
        if found:
            good = False
            text = "; ".join(_WORDS[word].format(f"{count:,}") for word, count in found.items())
            level = Level.ERROR if found["damaged"] else Level.WARNING
            yield Finding(level, "trackers", name, text, REPAIR, repairable=True, repaired=repairs is not None)
    if not whole:
        yield Finding(Level.WARNING, "trackers", "server", f"only about {MOST_KEYS:,} keys were looked at")
    if good:
        said = f"{len(names):,} tracker{'' if len(names) == 1 else 's'}"
        yield Finding(Level.OK, "trackers", said, "each task is listed as it should be")


def _look(store: Store, name: str, repairs: Repairs | None) -> Counter[str]:
    """What is wrong with a tracker, by word."""
    actor, dead = repairs.actor if repairs else "doctor", Counter[str]()
    found = Counter[str]()
    for key, ids in store.tracker_reads.members(name, count=_SLICE):
        wrong = store.trackers.repair_tracker(name, ids, repair=repairs is not None, actor=actor)
        dead[key] += wrong.pop("dead", 0)  # an index may have what another one has as well
        for word, count in wrong.items():
            if word in _FLAGS:
                found[word] = 1
            elif key == "tracker":
                found[word] += count
    return found + Counter(dead=max(dead.values(), default=0))
