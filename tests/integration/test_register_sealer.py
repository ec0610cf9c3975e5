"""`register_sealer`: one sealer at a time, with a token that fences out whoever was before."""

from __future__ import annotations

import pytest

from poimen_tasks.errors import SealerConflict
from poimen_tasks.store.audit_scripts import StreamChanged
from tests.integration.lanes import assert_layout
from tests.integration.sealers import Sealer, add, meta, register


def test_the_first_makes_the_epoch(store):
    """Registering on an empty server makes the stream's epoch; registering again keeps it (protocol 10)."""
    first = register(store)
    assert len(first.epoch) == 40
    assert (first.sealer, first.who, first.sealed, first.alive, first.length) == ("one", "sealer one", 0, True, 0)
    assert register(store).epoch == first.epoch
    assert meta(store)["epoch"] == first.epoch


def test_a_living_one_refuses_another(store):
    """The refusal says who it is and since when, and changes nothing (protocol 10)."""
    register(store)
    before = meta(store)
    with pytest.raises(SealerConflict, match=r"living sealer: sealer one, since 20\d\d-\d\d-\d\dT"):
        register(store, "two", home="elsewhere")
    assert meta(store) == before


def test_the_same_home_takes_over_at_once(store):
    """The file lock of a directory says that the first is dead; its token is worth nothing from then on."""
    first = Sealer(store)
    add(store)
    second = Sealer(store, "two")
    with pytest.raises(StreamChanged, match="FENCED sealer two"):
        first.read()
    with pytest.raises(StreamChanged, match="FENCED"):
        first.publish([])
    assert len(second.read()) == 1


def test_a_dead_one_is_taken_over_after_its_lease(store, eventually):
    """Another directory waits for the lease of the one that is not heard of any more."""
    register(store, lease=0.2)

    def taken():
        try:
            return register(store, "two", home="elsewhere").sealer == "two"
        except SealerConflict:
            return False

    assert eventually(taken, 10)


def test_one_that_left_in_order_needs_no_wait(store):
    """Who says goodbye leaves the stream to the next at once, and the stream is not bounded meanwhile."""
    register(store)
    assert store.audit.leave_sealer("one")
    assert meta(store)["sealer"] == "one"
    assert register(store, "two", home="elsewhere").sealer == "two"


def test_a_beat_from_the_future(store):
    """A registration from before the server's clock went back does not count as alive for ever."""
    register(store)
    store.client.redis.hset(store.keys.build("audit_meta"), "beat", 4e9)
    assert register(store, "two", home="elsewhere").sealer == "two"


def test_layout(store):
    """Data of another layout is not touched."""
    assert_layout(store, lambda: register(store))
