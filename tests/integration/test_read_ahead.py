"""`Source.read` and `Ahead`: entries that are asked for before they are wanted come once, in order, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from poimen_tasks.audit.source import BEGIN, Source
from poimen_tasks.store import Store
from poimen_tasks.store.ahead import Ahead
from poimen_tasks.store.audit_scripts import StreamChanged
from poimen_tasks.testing import eventually
from tests.integration.sealers import Sealer, add, ids


@pytest.fixture
def source(store: Store, tmp_path: Path) -> Source:
    """A registered one."""
    made = Source(store.audit, tmp_path, lease=60.0)
    made.register()
    return made


def rest(source: Source, after: str) -> list[str]:
    """The ids of all entries behind one."""
    found, full = list[str](), True
    while full:
        entries, full = source.read(after=after)
        found += [entry.id for entry in entries]
        after = found[-1] if found else after
    return found


def calls(store: Store) -> int:
    """How often the script ran."""
    return int(store.client.redis.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_each_entry_once_and_in_order(store: Store, source: Source) -> None:
    """What was asked for ahead is what comes next, and nothing is asked for twice."""
    assert rest(source, BEGIN) == []  # the server knows the script
    written = add(store, 1_250)
    before = calls(store)
    assert rest(source, BEGIN) == written
    assert calls(store) - before == 3


def test_nothing_was_there_when_it_was_asked_for(store: Store, source: Source) -> None:
    """That there was no more entry at that time says nothing of now: what came since is not left waiting."""
    written = add(store, 500)
    assert rest(source, BEGIN) == written
    before = calls(store)
    assert source.read(after=BEGIN)[1]
    eventually(lambda: calls(store) - before == 2)  # the second question is answered: there is nothing
    late = add(store, 3)
    assert rest(source, written[-1]) == late


def test_another_place_than_the_one_asked_for(store: Store, source: Source) -> None:
    """Who goes on elsewhere gets what is there."""
    written = add(store, 1_100)
    source.read(after=BEGIN)
    assert rest(source, written[9]) == written[10:]
    source.read(after=BEGIN)
    entries, _ = source.read(after=BEGIN, most=written[4])
    assert [entry.id for entry in entries] == written[:5]


def test_the_connection_is_lost(store: Store, source: Source) -> None:
    """A reply that does not come is asked for in the ordinary way."""
    written = add(store, 1_100)
    source.read(after=BEGIN)
    for client in store.client.redis.client_list():
        if client["cmd"] == "evalsha":
            store.client.redis.client_kill_filter(_id=client["id"])
    assert rest(source, written[499]) == written[500:]


def test_a_server_that_forgot_the_script(store: Store, source: Source) -> None:
    """The ordinary way teaches it anew."""
    written = add(store, 600)
    entries, _ = source.read(after=BEGIN)
    ahead, request = Ahead(store.client), {"token": "none", "epoch": "none"}
    store.client.redis.script_flush()
    ahead.ask("read_audit", request)
    assert ahead.take("read_audit", request) is None
    assert [*(entry.id for entry in entries), *rest(source, entries[-1].id)] == written


def test_registering_forgets_what_was_asked_before(store: Store, source: Source) -> None:
    """The stream may have come back older, under the same epoch: what it had is not taken for what it has."""
    written = add(store, 600)
    entries, _ = source.read(after=BEGIN)
    store.client.redis.xdel(store.keys.build("audit"), written[-1])
    source.register()
    assert rest(source, entries[-1].id) == written[500:-1]


def test_who_was_replaced_takes_nothing_off(store: Store, source: Source) -> None:
    """It may still read what it had asked for; what it seals of that it cannot publish."""
    written = add(store, 1_100)
    source.read(after=BEGIN)
    source.leave()
    other = Sealer(store)
    with pytest.raises(StreamChanged, match="FENCED"):
        source.read(after=written[499])
    source.position = written[999]
    with pytest.raises(StreamChanged, match="FENCED"):
        source.publish(size=1_000, root="00", count=1_000)
    assert ids(store) == written
    assert other.read(count=500) == written[:500]
