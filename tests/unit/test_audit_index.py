"""The index of a sealed log against reading every line, and what happens to it; no server is at hand here."""

from __future__ import annotations

import os
import random
import sqlite3
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from poimen_tasks import AuditCorrupt, AuditEvent, AuditUnavailable, InvalidArgument, InvalidId, Settings
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.follow_index import Pace
from poimen_tasks.audit.index import AuditIndex
from tests.auditing import lines_on_disk, write_log

BEGIN = datetime(2025, 11, 29, tzinfo=UTC)
COUNT = 600
TYPES, ACTORS, STATUSES = ("note", "plan.made", "x"), ("ada", "bob", "cron", "planner"), ("success", "failure")
WORKFLOWS, TASKS = ("w1", "w2", "w3"), ("T1", "T2", "a b/c", 'é "q" \\ 🐑')


def made(seed=7, count=COUNT):
    """Events with ids; their times are not quite in order, and some names are rare."""
    chance = random.Random(seed)
    for at in range(count):
        moment = BEGIN + timedelta(seconds=at + chance.randint(-30, 30), microseconds=chance.randrange(1_000_000))
        yield (
            f"e{at}",
            AuditEvent(
                event_type=TYPES[chance.randrange(3) * chance.randrange(2)],
                actor=chance.choice(ACTORS),
                status=STATUSES[chance.random() < 0.1],
                workflow=chance.choice((*WORKFLOWS, None)),
                task=chance.choice((*TASKS, None)),
                timestamp=moment,
                # Most lines are read by one match; these look as if their status stood elsewhere, and some are nested.
                action=f'number {at}","input":null,"output":null,"status":"other","x":"',
                input={"status": "other", "task_id": "T3"} if at % 9 == 4 else None,
                reasoning="a Needle\nin it" if at % 50 == 3 else "",
                metadata={"deep": {"list": ["NEEDLE" if at % 70 == 5 else "hay"]}},
            ),
        )


def ask(directory):
    """Questions to the log in a directory, without a server."""
    settings = Settings(audit_dir=directory)
    return Asking(lambda: settings, None)


class Log:
    """A log: where it is, and its events as a strict parser reads them."""

    def __init__(self, directory):
        self.directory = directory
        self.events = [line["event"] for line in lines_on_disk(directory)]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A log of some segments."""
    directory = tmp_path_factory.mktemp("log")
    events = list(made())
    for start in range(0, COUNT, 100):
        write_log(directory, events[start : start + 100], start=start + 1, segment_bytes=60_000)
    assert len(list((directory / "segments").iterdir())) > 2
    return Log(directory)


def wanted(event, filters):
    """The meaning of the filters, said once more, without a word of the package."""
    when = datetime.fromisoformat(event["timestamp"])
    text = filters.get("text", "").lower()
    return all(
        (
            "type" not in filters or event["event_type"] in filters["type"],
            "actor" not in filters or event["actor"] in filters["actor"],
            "status" not in filters or event["status"] == filters["status"],
            "workflow" not in filters or event["workflow_id"] == filters["workflow"],
            "task" not in filters or event["task_id"] == filters["task"],
            "since" not in filters or when > filters["since"],
            "until" not in filters or when < filters["until"],
            text in str(event).lower(),
        )
    )


def numbers(events):
    """Which events they are."""
    return [int(event.event_id[1:]) for event in events]


MOMENTS = st.integers(-60, COUNT + 60).map(lambda second: BEGIN + timedelta(seconds=second))
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.lists(st.sampled_from([*TYPES, "never"]), min_size=1, max_size=3, unique=True),
        "actor": st.lists(st.sampled_from([*ACTORS, "nobody"]), min_size=1, max_size=3, unique=True),
        "status": st.sampled_from([*STATUSES, "other"]),
        "workflow": st.sampled_from([*WORKFLOWS, "w4"]),
        "task": st.sampled_from([*TASKS, "T3"]),
        "since": MOMENTS,
        "until": MOMENTS,
        "text": st.sampled_from(["needle", "NUMBER 1", "nowhere", "hay"]),
    },
).filter(lambda given: "since" not in given or "until" not in given or given["since"] < given["until"])


@hypothesis_settings(max_examples=50, deadline=None)
@given(filters=FILTERS, newest_first=st.booleans(), limit=st.integers(1, 40))
def test_the_index_tells_what_the_lines_tell(log, filters, newest_first, limit):
    """Any filters, either order, page by page: the events are those that reading every line finds (promise A5)."""
    directory, lines = log.directory, log.events
    expected = [at for at, event in enumerate(lines) if wanted(event, filters)]
    asked = ask(directory)
    assert asked.count(**filters) == len(expected)
    whole = asked.query(limit=None, newest_first=newest_first, **filters)
    assert numbers(whole) == (expected[::-1] if newest_first else expected)
    assert [event.sequence for event in whole] == numbers(whole)
    assert (whole.source, whole.more) == ("index", False)
    paged, cursor = [], None
    for _ in range(3):
        page = asked.query(limit=limit, after=cursor, newest_first=newest_first, **filters)
        paged += numbers(page)
        assert page.more == (len(page) == limit)
        if not page.more:
            break
        cursor = page.cursor
    assert paged == numbers(whole)[: len(paged)]
    assert len(paged) == min(len(whole), 3 * limit)


def test_a_trail_is_whole(log):
    """The trail has every event in the order of the log; that of a workflow only its own; of an unknown one, none."""
    directory, lines = log.directory, log.events
    asked = ask(directory)
    assert numbers(asked.trail()) == list(range(COUNT))
    own = [at for at, event in enumerate(lines) if event["workflow_id"] == "w2"]
    assert numbers(asked.trail("w2")) == own
    assert list(asked.trail("nothing")) == []


def test_single_events(log):
    """An event is found by its id and by the number of its line, and is the one that was written."""
    directory, lines = log.directory, log.events
    asked = ask(directory)
    found = asked.get("e17")
    assert found.to_dict() == lines[17] == asked.line(17).to_dict()
    assert (found.sequence, asked.get("e"), asked.get("ab" * 6 + "-5-0-0"), asked.line(COUNT)) == (17, None, None, None)


def tables(directory):
    """All that an index holds, but for its rows' places in the file."""
    with sqlite3.connect(directory / "index.sqlite") as db:
        names = ("meta", "events", "postings", "blocks", "epochs")
        found = {name: sorted(db.execute(f"SELECT * FROM {name}").fetchall()) for name in names}  # noqa: S608 - ours
        found["facets"] = db.execute("SELECT * FROM facets ORDER BY id").fetchall()
    db.close()
    return found


def test_rebuilt_equals_live(tmp_path):
    """An index that grew with the log, and one that is made from the whole log, are the same."""
    events = list(made(seed=11, count=300))
    for start in range(0, 300, 60):
        write_log(tmp_path, events[start : start + 60], start=start + 1, segment_bytes=30_000)
        assert ask(tmp_path).count() == start + 60
    live = tables(tmp_path)
    assert ask(tmp_path).rebuild_index() == 300
    assert tables(tmp_path) == live
    assert len(live["events"]) == 300


def test_an_event_that_was_recorded_twice(tmp_path):
    """It is told once, wherever its lines are; another event under the same id is an event of its own (fault H07)."""
    first, other = (
        AuditEvent(event_type="note", actor="ada", action="a"),
        AuditEvent(event_type="note", actor="ada", action="b"),
    )
    write_log(tmp_path, [("e1", first), ("e2", first), ("e1", first)])
    assert ask(tmp_path).count() == 2
    write_log(tmp_path, [("e1", first), ("e1", other)], start=4)
    asked = ask(tmp_path)
    assert [(event.event_id, event.action) for event in asked.query()] == [("e1", "a"), ("e2", "a"), ("e1", "b")]
    assert (asked.count(), asked.count(actor="ada"), asked.stats().events) == (3, 3, 3)
    assert (asked.get("e1").action, asked.line(2)) == ("a", None)


def test_only_what_is_sealed(tmp_path):
    """Lines behind the checkpoint are not told: they may be cut by the next start of the sealer (fault H13)."""
    write_log(tmp_path, list(made(count=5)))
    (segment,) = (tmp_path / "segments").iterdir()
    with segment.open("ab") as file:
        file.write(segment.read_bytes().splitlines(keepends=True)[0])
    assert ask(tmp_path).count() == 5


# -------------------------------------------------------------------------------------------- damage
@pytest.fixture
def small(tmp_path):
    """A log of twenty lines with its index."""
    write_log(tmp_path, list(made(count=20)))
    assert ask(tmp_path).count() == 20
    return tmp_path


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 400, None])
def test_a_damaged_index_is_made_again(small, damage):
    """An index file that is gone, empty, or no index costs nothing but the time to make it again."""
    for path in small.glob("index.sqlite*"):
        path.unlink()
    if damage is not None:
        (small / "index.sqlite").write_bytes(damage)
    assert ask(small).count(workflow="w1") == sum(event.workflow == "w1" for _, event in made(count=20))


def test_an_index_of_an_empty_log_goes_on(tmp_path):
    """An index that was made before the first line is that of the log, and nothing is put aside."""
    write_log(tmp_path, [])
    assert AuditIndex.open(tmp_path).catch_up() == 0
    write_log(tmp_path, list(made(count=20)))
    assert AuditIndex.open(tmp_path).catch_up() == 20
    assert (ask(tmp_path).count(), list(tmp_path.glob("*.bad"))) == (20, [])


@pytest.mark.parametrize("count", [20, 30])
def test_the_index_of_another_log(small, tmp_path_factory, count):
    """An index that was copied to another log is not believed, be they of the same length."""
    other = tmp_path_factory.mktemp("other")
    write_log(other, [("x1", AuditEvent(event_type="note", actor="zoe", action="a"))] * count)
    (other / "index.sqlite").write_bytes((small / "index.sqlite").read_bytes())
    assert {event.actor for event in ask(other).query()} == {"zoe"}


@pytest.mark.parametrize("how", ["flip", "swap", "delete", "torn"])
def test_changed_lines_are_named(small, how):
    """A line that was changed, moved, deleted or torn is an error with its place, never skipped (promise A7)."""
    (segment,) = (small / "segments").iterdir()
    segment.chmod(0o644)
    lines = segment.read_bytes().splitlines(keepends=True)
    if how == "flip":
        lines[7] = lines[7].replace(b"number 7", b"number 8")
    elif how == "swap":
        lines[7], lines[8] = lines[8], lines[7]
    elif how == "delete":
        del lines[7]
    else:
        lines[7] = lines[7][:30] + b"\n"
    segment.write_bytes(b"".join(lines))
    with pytest.raises(AuditCorrupt, match=r"line (7|8)\b"):
        list(ask(small).query(limit=None))
    (small / "index.sqlite").unlink()
    with pytest.raises(AuditCorrupt, match=r"line (7|8)\b"):
        ask(small).count()


# -------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("filters", "error", "said"),
    [
        ({"typ": "note"}, InvalidArgument, "filter 'typ' is not known; known are type, workflow"),
        ({"limit": 0}, InvalidArgument, "limit"),
        ({"limit": "5"}, InvalidArgument, "limit"),
        ({"limit": True}, InvalidArgument, "limit"),
        ({"newest_first": 1}, InvalidArgument, "newest_first"),
        ({"after": "page 2"}, InvalidArgument, "after"),
        ({"after": 7}, InvalidArgument, "after"),
        ({"since": BEGIN, "until": BEGIN}, InvalidArgument, "since: expected a moment before until"),
        ({"since": BEGIN + timedelta(1), "until": BEGIN}, InvalidArgument, "since"),
        ({"since": "2025-11-29"}, InvalidArgument, "since: expected an aware datetime"),
        ({"until": datetime(2025, 11, 29)}, InvalidArgument, "until"),  # noqa: DTZ001
        ({"workflow": "a\nb"}, InvalidId, "workflow"),
        ({"workflow": ["w1"]}, InvalidId, "workflow"),
        ({"task": "\x00"}, InvalidId, "task"),
        ({"actor": ""}, InvalidId, "actor"),
        ({"actor": []}, InvalidArgument, "actor"),
        ({"status": 7}, InvalidArgument, "status"),
        ({"type": b"note"}, InvalidArgument, "type"),
        ({"text": ""}, InvalidArgument, "text"),
        ({"text": "x" * 1001}, InvalidArgument, "text"),
        ({"text": 7}, InvalidArgument, "text"),
    ],
)
def test_bad_questions(small, filters, error, said):
    """A filter that is unknown or of another type is refused before anything is read; the error names it."""
    with pytest.raises(error, match=f"^{said}"):
        ask(small).query(**filters)


def test_places_without_a_log(tmp_path):
    """A directory without a log, a file in its place, or a log that lost its checkpoint: each is one clear error."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(AuditUnavailable, match="not a directory"):
        ask(tmp_path / "file").query()
    with pytest.raises(AuditUnavailable, match="there is no audit log"):
        AuditIndex.open(tmp_path)
    write_log(tmp_path / "log", list(made(count=3)))
    (tmp_path / "log" / "checkpoint").unlink()
    with pytest.raises(AuditCorrupt, match="checkpoint"):
        ask(tmp_path / "log").query()


def test_a_directory_that_cannot_be_entered(tmp_path):
    """The system's word about it is in the error, with its name."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(AuditUnavailable, match="loop' cannot be looked at "):
        ask(tmp_path / "loop").query()


def test_an_unreadable_directory(small):
    """A log that may not be read is an error that names it."""
    small.chmod(0)
    try:
        assert _as_nobody(lambda: ask(small).query()).startswith("AuditUnavailable: ")
    finally:
        small.chmod(0o755)


def _as_nobody(call) -> str:
    """What the call raises in a process without root's rights, with its message."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            call()
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read().decode()


def test_a_directory_that_may_not_be_written(small, monkeypatch):
    """Who may only read the log gets answers too, by an index that is thrown away."""
    for path in small.glob("index.sqlite*"):
        path.unlink()
    monkeypatch.setattr("poimen_tasks.audit.index.os.access", lambda _path, right, **_: not right & os.W_OK)
    assert ask(small).count() == 20
    assert not list(small.glob("index.sqlite*"))


def test_the_index_waits_while_lines_pour_in():
    """It goes on in calm, waits for the end of a flood, and takes a portion now and then if there is none."""
    pace = Pace()
    asked = [(at / 10, pace.may_go_on(0, at / 10 + 1e6)) for at in range(10)]
    assert [at for at, may in asked if may] == [0.5, 0.6, 0.7, 0.8, 0.9]
    flood = [pace.may_go_on(at * 3_000, 1e6 + 1 + at / 10) for at in range(1, 250)]
    assert not any(flood[10:90])
    assert flood.count(True) <= 10
    assert any(flood[90:120])
    assert [pace.may_go_on(750_000, 1e6 + 26 + at / 10) for at in range(10)][-3:] == [True] * 3
