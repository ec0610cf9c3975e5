"""The table of canvases that `test_conformance.py` runs: how each ends natively, and how when it is dispatched."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from celery import chain, chord, group, signature
from celery.exceptions import CPendingDeprecationWarning


@dataclass(frozen=True)
class Error:
    """An error: the name of its class, and a pattern that its whole message matches."""

    type: str
    message: str = ".*"


@dataclass(frozen=True)
class Refused(Error):
    """What is raised at once, before anything is written."""


@dataclass(frozen=True)
class Left:
    """A side that is not run, and why."""

    reason: str


SAME: Any = object()
PUBLISHED: Any = "published"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A canvas and how it ends.

    Attributes:
        make: builds it anew; is given the app's module, with the path of a file for `notes` besides.
        native: its result, with an `Error` in the place of each failure; or why it is left out.
        dispatched: the same where it is dispatched; SAME as native.
        notes: patterns of the lines that its links, errbacks and bodies leave, sorted; for both sides.
        dispatched_notes: the same where it is dispatched; SAME as `notes`.
    """

    make: Callable[[Any], Any]
    native: Any
    dispatched: Any = SAME
    notes: list[str] = field(default_factory=list)
    dispatched_notes: Any = SAME


def through_json(canvas: Any) -> Any:
    """The plain dicts that are left of a canvas after a round trip through JSON."""
    return json.loads(json.dumps(canvas))


def frozen(sig: Any) -> Any:
    """A signature that has its message id already."""
    sig.freeze()
    return sig


def stamped(canvas: Any, **stamps: Any) -> Any:
    """A canvas with stamps."""
    canvas.stamp(**stamps)
    return canvas


def linked(canvas: Any, *errbacks: Any) -> Any:
    """A canvas with errbacks."""
    with warnings.catch_warnings():
        # What a chord does with its errbacks is said to change; the rows say what it does now.
        warnings.simplefilter("ignore", CPendingDeprecationWarning)
        for errback in errbacks:
            canvas.link_error(errback)
    return canvas


def unknown(*args: Any) -> Any:
    """A call of a task that nobody knows."""
    return signature("nobody.knows", args=args)


# What is not a batch's: one call, and a canvas in which something follows something.
SINGLE = Refused("UnsupportedWork", "work: a single call is not supported.*")
CHAIN = Refused("UnsupportedWork", "work: a chain is not supported.*")
MEMBER_CHAIN = Refused("UnsupportedWork", 'item ".": a chain of 2 steps is not supported.*')
MEMBER_CHORD = Refused("UnsupportedWork", 'item ".": a chord is not supported here.*')
UNKNOWN = Refused("UnknownTask", ".*task 'nobody.knows' is not registered with app 'steps'")
REPLACED = Error("UnsupportedWork", r"self\.replace\(\) in an item of a batch is not supported.*")
BOOM = Error("ValueError", "boom")
FAILED = Error("BatchFailed", "batch '.*': .* of .* items failed.*")
# What an errback of the old style is given: the failed task's message id; where it is dispatched an item's, or for a
# chord the batch's, or for its body the callback's.
ALARM = r"alarm [0-9a-f-]{36}"
ITEM_ALARM = r"alarm [0-9a-f]{16}\.\d+"
BATCH_ALARM = r"alarm [0-9a-f]{16}"
BODY_ALARM = r"alarm [0-9a-f]{16}@success\.0\.0"
DEPENDENCY = Error("ChordError", r"Dependency \S+ raised ValueError\('boom'\)")

CASES: dict[str, Case] = {
    # --- one call, groups ---
    "a task": Case(make=lambda s: s.add.s(1, 1), native=2, dispatched=SINGLE),
    "a group": Case(make=lambda s: group(s.add.s(1, 1), s.add.s(2, 2)), native=[2, 4]),
    "a group of a generator": Case(make=lambda s: group(s.add.s(i, i) for i in range(3)), native=[0, 2, 4]),
    "a group of one": Case(make=lambda s: group(s.one.s()), native=[1]),
    "an empty group": Case(make=lambda _: group([]), native=[]),
    "a nested group": Case(make=lambda s: group(s.one.s(), group(s.one.s(), s.add.s(1, 1))), native=[1, 1, 2]),
    "a group with failures": Case(
        make=lambda s: group(s.one.s(), s.boom.s(), s.odd_fails.s(3)),
        native=[1, BOOM, Error("ValueError", "3 is odd")],
    ),
    "a group with an ignored task": Case(
        make=lambda s: group(s.one.s(), s.ignored.s()),
        native=Left("an ignored task stores no result, so waiting for it never ends"),
        dispatched=[1, Error("Ignore")],
    ),
    "a group of chains": Case(
        make=lambda s: group(chain(s.one.s(), s.double.s()), s.one.s()), native=[2, 1], dispatched=MEMBER_CHAIN
    ),
    "a group of chords": Case(
        make=lambda s: group(chord([s.one.s(), s.one.s()], s.total.s()), s.one.s()),
        native=[2, 1],
        dispatched=MEMBER_CHORD,
    ),
    "immutable signatures": Case(make=lambda s: group(s.add.si(1, 1), s.one.si()), native=[2, 1]),
    "partials with arguments of their group": Case(
        make=lambda s: group(s.add.s(1), s.add.s(2)).clone((10,)),
        native=Refused("TypeError", ".*missing 1 required positional argument: 'y'"),
        dispatched=Refused("UnsupportedWork", 'item "0": arguments do not fit .*'),
    ),
    "partials without": Case(
        make=lambda s: group(s.add.s(1), s.one.s()),
        native=Refused("TypeError", ".*missing 1 required positional argument: 'y'"),
        dispatched=Refused("UnsupportedWork", 'item "0": arguments do not fit .*'),
    ),
    "a delayed member": Case(make=lambda s: group(s.one.s().set(countdown=0.2), s.add.s(1, 1)), native=[1, 2]),
    "a member that is too late": Case(
        make=lambda s: group(s.one.s().set(expires=-1), s.add.s(1, 1)),
        native=[Error("TaskRevokedError", "expired"), 2],
        dispatched=[Error("Expired"), 2],
    ),
    "a member with a priority": Case(make=lambda s: group(s.one.s().set(priority=0), s.one.s()), native=[1, 1]),
    "a member without a result": Case(
        make=lambda s: group(s.one.s().set(ignore_result=True), s.one.s()),
        native=Left("a task whose result is ignored stores none, so waiting for it never ends"),
        dispatched=[1, 1],
    ),
    "a member with another serializer": Case(
        make=lambda s: group(s.one.s().set(serializer="json"), s.one.s()),
        native=[1, 1],
        dispatched=Refused("UnsupportedWork", "item \"0\": signature option 'serializer' is not supported.*"),
    ),
    "a stamped group": Case(
        make=lambda s: stamped(group(s.stamps.s(), s.stamps.s()), run="r1"),
        native=[{"run": "r1"}, {"run": "r1"}],
        dispatched=Refused("UnsupportedWork", ".*option 'run' is not supported.*"),
    ),
    "a group of one frozen signature twice": Case(
        make=lambda s: group([frozen(s.one.s())] * 2),
        native=[1, 1],
        dispatched=Refused("DuplicateItem", 'item id ".*" is used 2 times.*'),
    ),
    "a member that nobody knows": Case(
        make=lambda s: group(s.one.s(), unknown()),
        native=[1, Error("NotRegistered", ".*nobody.knows.*")],
        dispatched=UNKNOWN,
    ),
    "a group as plain dicts": Case(make=lambda s: through_json(group(s.one.s(), s.add.s(1, 1))), native=[1, 2]),
    # --- maps ---
    "map": Case(make=lambda s: s.double.map([1, 2]), native=[2, 4]),
    "starmap": Case(make=lambda s: s.add.starmap([(1, 1), (2, 2)]), native=[2, 4]),
    "map with a failure": Case(
        make=lambda s: s.odd_fails.map([0, 1, 2]),
        native=Error("ValueError", "1 is odd"),
        dispatched=[0, Error("ValueError", "1 is odd"), 2],
    ),
    "map as plain dicts": Case(make=lambda s: through_json(s.double.map([1, 2])), native=[2, 4]),
    "map in a group": Case(
        make=lambda s: group(s.double.map([1, 2]), s.one.s()),
        native=[[2, 4], 1],
        dispatched=Refused("UnsupportedWork", 'item "0": a map .*'),
    ),
    "chunks": Case(
        make=lambda s: s.add.chunks([(1, 1), (2, 2), (3, 3)], 2),
        native=[[2, 4], [6]],
        dispatched=Refused("UnsupportedWork", "work: chunks is not supported.*"),
    ),
    "a group of chunks": Case(
        make=lambda s: s.add.chunks([(1, 1), (2, 2), (3, 3)], 2).group(),
        native=[[2, 4], [6]],
        dispatched=Refused("UnsupportedWork", 'item "0": a starmap .*'),
    ),
    # --- retries, replacing ---
    "retries in a group": Case(
        make=lambda s: group(s.retries_itself.s(1), s.third_time.s(s.notes, 2)),
        native=[1, 2],
        notes=["run 2", "run 2", "run 2"],
    ),
    "a task that gives up": Case(
        make=lambda s: group(s.gives_up.s(), s.one.s()), native=[Error("KeyError", "'gone'"), 1]
    ),
    "replaced by a task": Case(
        make=lambda s: group(s.becomes_sum.s(1), s.one.s()), native=[11, 1], dispatched=[REPLACED, 1]
    ),
    "replaced by a chord": Case(
        make=lambda s: group(s.becomes_chord.s(1), s.one.s()), native=[6, 1], dispatched=[REPLACED, 1]
    ),
    "replaced by a group": Case(
        make=lambda s: group(s.becomes_group.s(1), s.one.s()), native=[[1, 2, 3], 1], dispatched=[REPLACED, 1]
    ),
    "replaced in a chain": Case(
        make=lambda s: chain(s.one.s(), s.becomes_sum.s(), s.double.s()), native=22, dispatched=CHAIN
    ),
    # --- links ---
    "links of members": Case(
        make=lambda s: group(s.one.s().set(link=s.tell.s(s.notes)), s.add.s(1, 1).set(link=s.tell.s(s.notes))),
        native=[1, 2],
        notes=["1", "2"],
    ),
    "two links": Case(
        make=lambda s: group(s.one.s().set(link=[s.tell.s(s.notes, "a"), s.tell.s(s.notes, "b")]), s.one.s()),
        native=[1, 1],
        notes=["a1", "b1"],
    ),
    "a link that is a group": Case(
        make=lambda s: group(s.one.s().set(link=group(s.tell.s(s.notes, "a"), s.tell.s(s.notes, "b"))), s.one.s()),
        native=[1, 1],
        notes=["a1", "b1"],
    ),
    "a link that is a chain": Case(
        make=lambda s: group(s.one.s().set(link=chain(s.double.s(), s.tell.s(s.notes))), s.one.s()),
        native=[1, 1],
        notes=["2"],
    ),
    "errbacks of a member": Case(
        make=lambda s: group(linked(s.boom.s(), s.alarm.s(s.notes), s.siren.s(path=s.notes)), s.one.s()),
        native=[BOOM, 1],
        notes=[ALARM, "siren ValueError: boom"],
        dispatched_notes=[ITEM_ALARM, "siren ValueError: boom"],
    ),
    "an errback that fails": Case(
        make=lambda s: group(linked(s.boom.s(), s.bounce.s(), s.alarm.s(s.notes)), s.one.s()),
        native=[BOOM, 1],
        notes=[ALARM],
        dispatched_notes=[ITEM_ALARM],
    ),
    "an errback on a group": Case(
        make=lambda s: linked(group(s.boom.s(), s.one.s()), s.alarm.s(s.notes)),
        native=[BOOM, 1],
        notes=[ALARM],
        dispatched_notes=[ITEM_ALARM],
    ),
    "a link on a group": Case(
        make=lambda s: group(s.one.s(), s.one.s()).set(link=s.tell.s(s.notes)),
        native=[1, 1],
        notes=["1", "1"],
        dispatched=Refused("UnsupportedWork", "work: link on celery.group is not supported.*"),
    ),
    # --- chords ---
    "a chord": Case(make=lambda s: chord([s.add.s(1, 1), s.add.s(2, 2)], s.total.s()), native=6),
    "a chord of a group": Case(make=lambda s: chord(group(s.one.s(), s.one.s()), s.total.s()), native=2),
    "a chord of a generator": Case(make=lambda s: chord((s.add.s(i, i) for i in range(3)), s.total.s()), native=6),
    "a chord of one": Case(make=lambda s: chord([s.one.s()], s.same.s()), native=[1]),
    "a chord of nothing": Case(make=lambda s: chord([], s.total.s()), native=0),
    "a chord of an empty group": Case(make=lambda s: chord(group(), s.total.s()), native=0),
    "a group and a task": Case(make=lambda s: group(s.one.s(), s.one.s()) | s.total.s(), native=2),
    "a chord as plain dicts": Case(make=lambda s: through_json(chord([s.one.s(), s.one.s()], s.total.s())), native=2),
    "a chord of a nested group": Case(
        make=lambda s: chord([s.one.s(), group(s.one.s(), s.add.s(1, 1))], s.same.s()),
        native=Left("Celery gives a body the results of a nested group flat, in no certain order"),
        dispatched=[1, 1, 2],
    ),
    "a chord with arguments": Case(
        make=lambda s: chord([s.add.s(1), s.add.s(2)], s.total.s()).clone((10,)),
        native=23,
        dispatched=Refused("UnsupportedWork", "work: arguments given to celery.chord are not supported.*"),
    ),
    "a chord of chords": Case(
        make=lambda s: chord([chord([s.one.s(), s.one.s()], s.total.s()), s.one.s()], s.total.s()),
        native=3,
        dispatched=MEMBER_CHORD,
    ),
    "a chord of chains": Case(
        make=lambda s: chord([chain(s.one.s(), s.double.s()), s.one.s()], s.total.s()),
        native=3,
        dispatched=MEMBER_CHAIN,
    ),
    "a chord of one frozen signature twice": Case(
        make=lambda s: chord([frozen(s.one.s())] * 2, s.total.s()),
        native=Left("fault A08: two parts of one id count as one, the body never runs"),
        dispatched=Refused("DuplicateItem", 'item id ".*" is used 2 times.*'),
    ),
    "a chord that somebody does not know": Case(
        make=lambda s: chord([s.one.s(), unknown()], s.total.s()),
        native=Left("Celery tells no chord of a member whose task no worker knows, the body never runs"),
        dispatched=UNKNOWN,
    ),
    "retries in a chord": Case(
        make=lambda s: chord([s.retries_itself.s(1), s.third_time.s(s.notes, 2)], s.total.s()),
        native=3,
        notes=["run 2", "run 2", "run 2"],
    ),
    "replaced in a chord": Case(
        make=lambda s: chord([s.becomes_sum.s(1), s.becomes_chord.s(1)], s.total.s()),
        native=17,
        dispatched=Error("BatchFailed", ".*2 of 2 items failed.*replace.*"),
    ),
    "a delayed member of a chord": Case(
        make=lambda s: chord([s.one.s().set(countdown=0.2), s.one.s()], s.total.s()), native=2
    ),
    "an ignored member of a chord": Case(
        make=lambda s: chord([s.one.s(), s.ignored.s()], s.total.s()),
        native=Left("an ignored task reports no part, the body never runs"),
        dispatched=Error("BatchFailed", ".*0 of 2 items failed, 0 cancelled, 1 skipped.*"),
    ),
    # --- bodies ---
    "an immutable body": Case(make=lambda s: chord([s.one.s(), s.one.s()], s.total.si([5])), native=5),
    "a body with arguments": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], s.tell.s(s.notes, tag="got ")),
        native=[1, 1],
        notes=[r"got \[1, 1\]"],
    ),
    "a body with a link": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], s.total.s().set(link=s.tell.s(s.notes))), native=2, notes=["2"]
    ),
    "a link on a chord": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], s.total.s()).set(link=[s.tell.s(s.notes)]), native=2, notes=["2"]
    ),
    "a delayed body": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], s.tell.s(s.notes).set(countdown=0.2)),
        native=[1, 1],
        notes=[r"\[1, 1\]"],
    ),
    "a frozen body": Case(make=lambda s: chord([s.one.s(), s.one.s()], frozen(s.total.s())), native=2),
    "a body that is a chain": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], chain(s.total.s(), s.double.s())), native=4
    ),
    "a body that is a chord": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], chord([s.total.s(), s.total.s()], s.total.s())), native=4
    ),
    "a body that is a group": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], group(s.tell.s(s.notes, "a"), s.tell.s(s.notes, "b"))),
        native=[[1, 1], [1, 1]],
        notes=[r"a\[1, 1\]", r"b\[1, 1\]"],
        dispatched=PUBLISHED,
    ),
    "a body that nobody knows": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], unknown()),
        native=Error("NotRegistered", ".*nobody.knows.*"),
        dispatched=UNKNOWN,
    ),
    "a body that retries": Case(make=lambda s: chord([s.one.s(), s.one.s()], s.retries_itself.s()), native=[1, 1]),
    "a body that is replaced": Case(
        make=lambda s: chord([s.one.s()], s.becomes_same.s()),
        native=[1],
        dispatched=Error("BatchFailed", ".*replace.*"),
    ),
    # --- chords that fail ---
    "one of a chord fails": Case(
        make=lambda s: chord([s.one.s(), s.boom.s()], linked(s.tell.s(s.notes), s.alarm.s(s.notes))),
        native=DEPENDENCY,
        notes=[ALARM],
        dispatched=FAILED,
        dispatched_notes=[BATCH_ALARM],
    ),
    "all of a chord fail": Case(
        make=lambda s: chord([s.boom.s(), s.boom.s()], linked(s.tell.s(s.notes), s.alarm.s(s.notes))),
        native=DEPENDENCY,
        notes=[ALARM],
        dispatched=FAILED,
        dispatched_notes=[BATCH_ALARM],
    ),
    "a chord of one fails": Case(
        make=lambda s: chord([s.boom.s()], linked(s.tell.s(s.notes), s.alarm.s(s.notes))),
        native=DEPENDENCY,
        notes=[ALARM],
        dispatched=FAILED,
        dispatched_notes=[BATCH_ALARM],
    ),
    "a chord with an errback of the new style": Case(
        make=lambda s: chord([s.one.s(), s.boom.s()], linked(s.tell.s(s.notes), s.siren.s(path=s.notes))),
        native=DEPENDENCY,
        notes=["siren ChordError: Dependency .*"],
        dispatched=Refused("UnsupportedWork", "on_failure, called with the batch's id: arguments do not fit .*siren.*"),
    ),
    "an errback on a chord": Case(
        make=lambda s: linked(chord([s.one.s(), s.boom.s()], s.tell.s(s.notes)), s.alarm.s(s.notes)),
        native=DEPENDENCY,
        notes=[ALARM],
        dispatched=FAILED,
        dispatched_notes=[BATCH_ALARM],
    ),
    "several errbacks of a body, one of which fails": Case(
        make=lambda s: chord(
            [s.boom.s()], linked(s.total.s(), s.bounce.s(), s.alarm.s(s.notes), s.tell.s(s.notes, "failed "))
        ),
        native=DEPENDENCY,
        notes=[ALARM, "failed '.{36}'"],
        dispatched=FAILED,
        dispatched_notes=[BATCH_ALARM, "failed '.{16}'"],
    ),
    "an errback on a header": Case(
        make=lambda s: chord([s.one.s(), linked(s.boom.s(), s.alarm.s(s.notes))], s.tell.s(s.notes)),
        native=DEPENDENCY,
        notes=[ALARM],
        dispatched_notes=[ITEM_ALARM],
        dispatched=FAILED,
    ),
    "a member that gives up": Case(
        make=lambda s: chord([s.one.s(), s.gives_up.s()], linked(s.tell.s(s.notes), s.alarm.s(s.notes))),
        native=Error("ChordError", r"Dependency \S+ raised KeyError\('gone'\)"),
        notes=[ALARM],
        dispatched=FAILED,
        dispatched_notes=[BATCH_ALARM],
    ),
    "a header fails before a group": Case(
        make=lambda s: chord([s.one.s(), s.boom.s()], group(s.tell.s(s.notes, "a"), s.tell.s(s.notes, "b"))),
        native=[BOOM, BOOM],
        dispatched=FAILED,
    ),
    "a header fails before a chain": Case(
        make=lambda s: chord([s.one.s(), s.boom.s()], chain(s.total.s(), s.tell.s(s.notes))),
        native=DEPENDENCY,
        dispatched=FAILED,
    ),
    "a body fails": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], linked(s.bounce.s(), s.alarm.s(s.notes))),
        native=Error("ValueError", r"bounced \[1, 1\]"),
        notes=[ALARM],
        dispatched_notes=[BODY_ALARM],
        dispatched=Error("BatchFailed", r"on_success of batch '.*' failed: ValueError: bounced \[1, 1\]"),
    ),
    # --- chains ---
    "a chain": Case(
        make=lambda s: chain(s.one.s(), s.double.s(), s.tell.s(s.notes)), native=2, notes=["2"], dispatched=CHAIN
    ),
    "a chain of one": Case(make=lambda s: chain(s.one.s()), native=1, dispatched=SINGLE),
    "a chain that fails": Case(
        make=lambda s: chain(
            s.one.s(), linked(s.bounce.s(), s.alarm.s(s.notes), s.siren.s(path=s.notes)), s.tell.s(s.notes)
        ),
        native=Error("ValueError", "bounced 1"),
        notes=[ALARM, "siren ValueError: bounced 1"],
        dispatched=CHAIN,
    ),
    "a chain with an errback": Case(
        make=lambda s: linked(chain(s.one.s(), s.bounce.s(), s.tell.s(s.notes)), s.alarm.s(s.notes)),
        native=Error("ValueError", "bounced 1"),
        notes=[ALARM],
        dispatched=CHAIN,
    ),
    "a chain with an immutable step": Case(
        make=lambda s: chain(s.one.s(), s.add.si(2, 2), s.double.s()), native=8, dispatched=CHAIN
    ),
    "a nested chain": Case(
        make=lambda s: chain(s.one.s(), chain(s.double.s(), s.double.s()), s.double.s()), native=8, dispatched=CHAIN
    ),
    "a chain as plain dicts": Case(
        make=lambda s: through_json(chain(s.one.s(), s.double.s())), native=2, dispatched=CHAIN
    ),
    "a group at the end of a chain": Case(
        make=lambda s: chain(s.one.s(), group(s.add.s(1), s.add.s(2))), native=[2, 3], dispatched=CHAIN
    ),
    "a group in a chain": Case(
        make=lambda s: chain(s.one.s(), group(s.add.s(1), s.add.s(2)), s.total.s()), native=5, dispatched=CHAIN
    ),
    "a chord in the middle": Case(
        make=lambda s: chain(s.one.s(), chord([s.add.s(1), s.add.s(2)], s.total.s()), s.double.s()),
        native=10,
        dispatched=CHAIN,
    ),
    "a chain behind a chord": Case(
        make=lambda s: chain(group(s.one.s(), s.one.s()), s.total.s(), s.double.s(), s.double.s()),
        native=8,
    ),
    "a chord behind a chord": Case(
        make=lambda s: chain(group(s.one.s(), s.one.s()), group(s.total.s(), s.total.s()), s.total.s()),
        native=4,
    ),
    "an empty group in a chain": Case(make=lambda s: chain(s.one.s(), group(), s.add.s(1)), native=2, dispatched=CHAIN),
    "an empty group before a task": Case(make=lambda s: chain(group(), s.one.s()), native=1, dispatched=SINGLE),
    "a chain that fails in a chord": Case(
        make=lambda s: chord(
            [chain(s.boom.s(), s.double.s()), s.one.s()], linked(s.tell.s(s.notes), s.alarm.s(s.notes))
        ),
        native=DEPENDENCY,
        notes=[ALARM],
        dispatched=MEMBER_CHAIN,
    ),
    "a chord that fails in a chord": Case(
        make=lambda s: chord(
            [chord([s.one.s(), s.boom.s()], s.total.s()), s.one.s()], linked(s.tell.s(s.notes), s.alarm.s(s.notes))
        ),
        native=Left("Celery tells an outer chord nothing of an inner one that failed, the body never runs"),
        dispatched=MEMBER_CHORD,
    ),
    "a stamped chain": Case(
        make=lambda s: stamped(chain(s.one.s(), s.stamps.s()), run="r1"), native={"run": "r1"}, dispatched=CHAIN
    ),
    # --- a batch as a step ---
    "a batch in a chain": Case(
        make=lambda s: chain(s.upto.s(3), s.poimen.each(s.double), s.tell.s(s.notes)),
        native=[0, 2, 4],
        notes=[r"\[0, 2, 4\]"],
        dispatched=CHAIN,
    ),
    "a batch as a member": Case(
        make=lambda s: group(s.one.s(), s.poimen.each(s.double, [1])),
        native=[1, [2]],
        dispatched=Refused("UnsupportedWork", r'item "1": poimen\.each .*'),
    ),
    "a batch as a body": Case(
        make=lambda s: chord([s.one.s(), s.one.s()], s.poimen.each(s.double).set(link=s.tell.s(s.notes))),
        native=[2, 2],
        notes=[r"\[2, 2\]"],
    ),
    "a batch alone": Case(
        make=lambda s: s.poimen.each(s.double, [1]),
        native=[2],
        dispatched=Refused("UnsupportedWork", r"work: poimen\.each .*"),
    ),
}
