"""Questions while entries move from the stream to the disk: nothing is missing, nothing is told twice."""

from __future__ import annotations

import threading

import pytest

from poimen_tasks import AuditEvent, InvalidArgument, Poimen, StoreUnavailable
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.index import AuditIndex
from poimen_tasks.audit.sealed import Sealed
from poimen_tasks.audit.unsealed import Unsealed
from tests.auditing import seal
from tests.conftest import eventually


@pytest.fixture
def poimen(settings):
    """An app with this test's settings, without workers."""
    made = Poimen(
        "audited", redis_url=settings.redis_url, namespace=settings.namespace, data_dir=settings.data_dir,
        audit_inline_bytes=500,
    )  # fmt: skip
    yield made
    made.close()


def note(poimen, *actions, **fields):
    """Record events with these actions."""
    return poimen.audit.record_many(
        [AuditEvent(event_type="note", actor="ada", action=action, **fields) for action in actions]
    )


def actions(events):
    return [event.action for event in events]


def test_the_source_is_said(poimen):
    """From the stream while nothing is sealed, from both afterwards, and what is sealed has its line's number."""
    note(poimen, "a", "b")
    page = poimen.audit.query()
    assert (actions(page), page.source, [event.sequence for event in page]) == (["a", "b"], "stream", [None, None])
    assert seal(poimen) == 2
    note(poimen, "c")
    page = poimen.audit.query()
    assert (actions(page), page.source, [event.sequence for event in page]) == (
        ["a", "b", "c"],
        "index+stream",
        [0, 1, None],
    )
    assert page.to_dict()["source"] == "index+stream"
    assert poimen.store.entries.after("0-0") != []


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_while_entries_are_sealed(poimen, newest_first):
    """A cursor of the stream goes on in the sealed log when its entry has moved there meanwhile."""
    order = [f"n{at}" for at in range(20)]
    for action in order:
        note(poimen, action)
    found, cursor = [], None
    for turn in range(20):
        page = poimen.audit.query(limit=3, after=cursor, newest_first=newest_first)
        found += actions(page)
        if turn == 1:
            seal(poimen)
        if turn == 3:
            note(poimen, "late")
        if not page.more:
            break
        cursor = page.cursor
    assert found == (order[::-1] if newest_first else [*order, "late"])


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("place", [(Sealed, "refresh"), (Unsealed, "forth"), (Unsealed, "back")])
def test_sealed_between_two_looks(poimen, monkeypatch, place, newest_first, before):
    """Entries that leave the stream while a question is answered are found in the sealed log (promise A5)."""
    order = ["a", "b", "c"]
    note(poimen, *order[:before])
    if before:
        seal(poimen)
    note(poimen, *order[before:])
    kind, name = place
    method = getattr(kind, name)

    def sealing(self, *arguments):
        seal(poimen)
        return method(self, *arguments)

    monkeypatch.setattr(kind, name, sealing)
    assert actions(poimen.audit.query(newest_first=newest_first)) == (order[::-1] if newest_first else order)
    note(poimen, "d")
    assert poimen.audit.count() == 4


@pytest.mark.parametrize("name", ["refresh", "edge"])
def test_a_place_that_is_sealed_meanwhile(poimen, monkeypatch, name):
    """What comes behind a cursor of the stream is told once, also when that place is sealed during the question."""
    note(poimen, "a")
    seal(poimen)
    note(poimen, "b", "c", "d")
    cursor = poimen.audit.query(limit=3).cursor
    method = getattr(Sealed, name)

    def sealing(self):
        seal(poimen)
        return method(self)

    monkeypatch.setattr(Sealed, name, sealing)
    assert actions(poimen.audit.query(after=cursor)) == ["d"]


def double(x):
    return 2 * x


def test_entries_of_many_items(poimen):
    """An entry that tells of many items is many events, and a page may end in the middle of it."""
    poimen.celery.conf.task_always_eager = True
    task = poimen.task(double, name="audited.double", shared=False)
    poimen.dispatch(poimen.map(task, range(200)), workflow="w").wait(timeout=60)
    entries = [entry for entry in poimen.store.entries.after("0-0") if entry.fields[b"t"] == b"item.finished"]
    assert len(entries) < 150
    whole = poimen.audit.query(type="item.finished")
    order = [event.task for event in whole]
    assert sorted(order, key=int) == [str(at) for at in range(200)]
    page = poimen.audit.query(type="item.finished", limit=101)
    back = poimen.audit.query(type="item.finished", newest_first=True, limit=101)
    seal(poimen)
    rest = poimen.audit.query(type="item.finished", after=page.cursor)
    assert [event.task for event in (*page, *rest)] == order
    rest = poimen.audit.query(type="item.finished", newest_first=True, after=back.cursor)
    assert [event.task for event in (*back, *rest)] == order[::-1]
    sealed = poimen.audit.query(type="item.finished")
    assert [event.to_dict() for event in sealed] == [event.to_dict() for event in whole]
    assert poimen.audit.get(whole[3].event_id).task == order[3]


def test_recorded_twice(poimen):
    """The same event under the same id is told once, sealed or not; another one under it too (fault H07)."""
    event = AuditEvent(event_id="mine", event_type="note", actor="ada", action="a")
    poimen.audit.record_many([event])
    poimen.audit.record_many([event, AuditEvent(event_id="mine", event_type="note", actor="ada", action="b")])
    assert (actions(poimen.audit.query()), poimen.audit.count()) == (["a", "b"], 2)
    seal(poimen)
    assert (actions(poimen.audit.query()), poimen.audit.count()) == (["a", "b"], 2)


def test_following(poimen):
    """Events come as they are written, sealed meanwhile or not, each once and in order (promise A5)."""
    note(poimen, "before")
    found, over = [], threading.Event()

    def follow():
        for event in poimen.audit.follow(stop=over.is_set, actor="ada"):
            found.append(event.action)  # noqa: PERF401 - it never ends

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    # From now on is when it began: it has begun when a first word came.
    eventually(lambda: note(poimen, "ping") and found)
    for at in range(30):
        note(poimen, f"n{at}")
        if at % 10 == 5:
            seal(poimen)
    eventually(lambda: found[-1] == "n29")
    over.set()
    thread.join(10)
    assert [action for action in found if action != "ping"] == [f"n{at}" for at in range(30)]
    everything = poimen.audit.follow(after="start", stop=lambda: False)
    assert next(everything).action == "before"


def test_large_fields(poimen):
    """A field over the inline limit stands beside the log by digest, and is read back in full."""
    text = "é\n" * 2000
    (told,) = poimen.audit.record_many(
        [AuditEvent(event_type="note", actor="ada", action="a", reasoning=text, output={"rows": ["x"] * 500})]
    )
    assert poimen.audit.content(poimen.audit.get(told.event_id), "reasoning") == text
    seal(poimen)
    (found,) = poimen.audit.query()
    assert (found.reasoning, found.output, sorted(found.content)) == ("", None, ["output", "reasoning"])
    assert poimen.audit.content(found, "reasoning") == text
    assert poimen.audit.content(found, "output") == {"rows": ["x"] * 500}
    assert poimen.audit.content(found, "error") is None


def test_without_a_server(poimen):
    """The sealed log answers when Redis does not; without a sealed log that is an error."""
    away = Poimen("away", redis_url="redis://127.0.0.1:1/0", data_dir=poimen.settings.data_dir, connect_timeout=0.3)
    with pytest.raises(StoreUnavailable):
        away.audit.query()
    note(poimen, "a")
    seal(poimen)
    page = away.audit.query()
    assert (actions(page), page.source, away.audit.stats().waiting) == (["a"], "index", None)
    away.close()


def test_stats(poimen):
    """Numbers of the log: what is sealed, by type, actor and status, and what waits; without a log, of the stream."""
    poimen.audit.planner_decision(action="a")
    note(poimen, "b", "c")
    before = poimen.audit.stats()
    assert (before.source, before.events, before.sealed, before.waiting) == ("stream", 3, None, 3)
    seal(poimen)
    after = poimen.audit.stats()
    assert (after.types, after.actors, after.statuses) == (
        {"note": 2, "planner_decision": 1}, {"ada": 2, "planner": 1}, {"success": 3},
    )  # fmt: skip
    assert (after.source, after.events, after.sealed, after.waiting, after.segments) == ("index", 3, 3, 0, 1)
    assert (after.first, after.last) == (before.first, before.last)


def test_another_namespace(poimen, settings):
    """A log is asked by the settings of its app alone: another namespace of the same server has none of it."""
    note(poimen, "a")
    other = Asking(lambda: settings, lambda: poimen.store)
    assert actions(other.query()) == ["a"]
    stranger = Poimen("s", redis_url=settings.redis_url, namespace="stranger", data_dir=settings.data_dir / "2")
    assert stranger.audit.query() == []
    stranger.close()


def test_a_stream_that_is_born_between_two_looks(poimen, monkeypatch):
    """A cursor has the stream's epoch in it: what comes after nobody knew one is told by the next question."""
    entries, epoch = poimen.store.entries, poimen.store.entries.epoch

    def late(**options):
        found = epoch(**options)
        if not found:
            note(poimen, "a")
        return found

    monkeypatch.setattr(entries, "epoch", late)
    page = poimen.audit.query(limit=1)
    assert actions([*page, *poimen.audit.query(after=page.cursor)]) == ["a"]


def test_an_index_that_another_process_makes(poimen, monkeypatch):
    """Of an empty log there may be a file without tables for a moment; a question waits for them."""
    seal(poimen)
    (poimen.settings.audit_dir / "index.sqlite").unlink(missing_ok=True)
    catch_up, calls = AuditIndex.catch_up, []

    def busy(index, *arguments):
        calls.append(1)
        return 0 if len(calls) < 3 else catch_up(index, *arguments)

    monkeypatch.setattr(AuditIndex, "catch_up", busy)
    assert poimen.audit.query() == []
    assert len(calls) == 3


def test_arguments_of_another_type(poimen):
    """Each is one error that names it, before anything is read."""
    event, nested = note(poimen, "a")[0], []
    for _ in range(5_000):
        nested = [nested]
    for call, part in (
        (lambda: poimen.audit.content(None, "reasoning"), "event: expected"),
        (lambda: poimen.audit.content(event, []), "field: expected"),
        (lambda: poimen.audit.follow(after=5), "after: expected"),
        (lambda: poimen.audit.follow(stop=5), "stop: expected"),
        (lambda: poimen.audit.rebuild_index(5), "progress: expected"),
        (lambda: poimen.audit.query(text=nested), "text: expected .* got a list"),
    ):
        with pytest.raises(InvalidArgument, match=part):
            call()


@pytest.mark.parametrize("content", ["x", 5, {"reasoning": 5}, {"reasoning": {}}, {"reasoning": {"sha256": 5}}])
def test_an_event_that_somebody_made(poimen, content):
    """Where an event's `content` has not the form that the log gives it, that is one error and no accident."""
    event = AuditEvent(event_type="note", actor="ada", action="a", content=content)
    with pytest.raises(InvalidArgument, match=r"^content.*: expected "):
        poimen.audit.content(event, "reasoning")


def test_a_place_that_holds_something_else(poimen):
    """A place of a text that is called one of JSON, and one of no digest."""
    note(poimen, "a", reasoning="no JSON " * 1000)
    seal(poimen)
    (found,) = poimen.audit.query()
    wrong = {"reasoning": {**found.content["reasoning"], "type": "json"}}
    event = AuditEvent(event_type="note", actor="ada", action="a", content=wrong)
    with pytest.raises(InvalidArgument, match=r"content\['reasoning'\]: expected the place of a text or of JSON"):
        poimen.audit.content(event, "reasoning")
    event = AuditEvent(event_type="note", actor="ada", action="a", content={"reasoning": {"sha256": "../../etc"}})
    with pytest.raises(InvalidArgument, match="digest: expected 64 hex digits"):
        poimen.audit.content(event, "reasoning")


@pytest.mark.parametrize(
    "values",
    [None, [], "x", {}, {"event_id": "e"}, {"event_id": "e", "event_type": "note", "timestamp": "x"},
     {"event_id": "e", "event_type": "note", "timestamp": 5}],
)  # fmt: skip
def test_values_of_no_event(values):
    """`AuditEvent.from_dict` of what is none is one error."""
    with pytest.raises(InvalidArgument, match="values: expected the dict of an event"):
        AuditEvent.from_dict(values)
