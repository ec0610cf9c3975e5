"""Mending boards: what is tracked wins, what can be read stays, and what cannot is kept beside it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks import BoardTask, InvalidArgument, InvalidId, TaskStatus, board
from poimen_tasks.board import mending
from poimen_tasks.board.reading import read
from tests.unit.boards import HEADER, RULE, boards, broken, table, tasks, titled

some = settings(max_examples=50, deadline=None)
ROWS = ("|T1|a|pending|b|c|", "|T2|d|in progress|e|f|")
HEALTHY = titled(*ROWS, "", "Below.")


def done(healed):
    """What was done, to which task."""
    return [(change.what, change.task) for change in healed.changes]


# ------------------------------------------------------------------------------------------- what is tracked
def test_healthy():
    """A healthy board whose states agree, or that nobody tracks, is not changed (promise B3)."""
    for tracked in (None, {}, [], {"T1": "pending", "T2": TaskStatus.IN_PROGRESS}, board.parse(HEALTHY).tasks):
        healed = board.heal(HEALTHY, tracked)
        assert (healed.text, healed.changes, healed.changed) == (HEALTHY, (), False)
        assert healed.board == board.parse(HEALTHY)


def test_what_is_tracked_wins():
    """A tracked value takes the place of another one; an empty one takes none, and the rest of the row stays."""
    healed = board.heal(HEALTHY, [BoardTask(id="T2", status="completed", branch="x")])
    assert healed.text == HEALTHY.replace("|T2|d|in progress|e|f|", "|T2|d|completed  |x|f|")
    assert done(healed) == [("status_changed", "T2"), ("branch_changed", "T2")]
    assert [str(change) for change in healed.changes] == [
        "task T2: status 'in_progress' became 'completed', as it is tracked",
        "task T2: branch 'e' became 'x', as it is tracked",
    ]


def test_a_row_that_is_missing():
    """A tracked task that the board lacks stands behind the others."""
    healed = board.heal(HEALTHY, {"T3": "failed"})
    assert healed.text == HEALTHY.replace("|e|f|\n", "|e|f|\n| T3 |  | failed |  |  |\n")
    assert done(healed) == [("task_added", "T3")]
    assert healed.to_dict()["changes"] == [
        {"task": "T3", "what": "task_added", "message": "task T3: added, as it is tracked (failed)"}
    ]


def test_what_counts_as_tracked():
    """A tracker, a list of tasks, and a dict of ids with states or tasks say the same."""
    task = BoardTask(id="T1", status="completed", scope="x")
    state = SimpleNamespace(id="T1", scope="x", status="completed", branch="", verification="")
    texts = {
        board.heal(HEALTHY, tracked).text
        for tracked in (
            [task],
            (task,),
            {"T1": task},
            [state],
            {"T1": state},
            SimpleNamespace(all=lambda: iter([task])),
        )
    }
    assert texts == {HEALTHY.replace("|T1|a|pending|", "|T1|x|completed|")}


BAD = {
    "a number": (5, InvalidArgument, "tracked: expected a StateTracker, a list of tasks or a dict of ids and states"),
    "a text": ("T1", InvalidArgument, "tracked: expected a StateTracker"),
    "ids alone": (["T1"], InvalidArgument, "tracked: expected tasks with id, scope, status, branch and verification"),
    "no status": ({"T1": "done"}, InvalidArgument, "status: expected one of pending, in_progress"),
    "no id": ({"": "pending"}, InvalidId, "task id: expected 1-256 printable characters"),
    "another id": ({"T1": BoardTask(id="T2")}, InvalidArgument, "tracked: id 'T1' is said to be that of task 'T2'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_tracked(name):
    """Anything else is refused, with what is allowed."""
    tracked, kind, said = BAD[name]
    with pytest.raises(kind, match=said):
        board.heal(HEALTHY, tracked)


def test_the_title_of_a_board_that_has_none():
    """It may be given, as words on one line."""
    assert board.heal("", title="Release").board.title == "Release"
    for title in ("", "a\nb", " a"):
        with pytest.raises(InvalidArgument, match="title: "):
            board.heal("", title=title)


# ------------------------------------------------------------------------------------------- what is broken
KEPT_WORDS = "Lines that were in the table and could not stay there as they were:"

BROKEN = {
    "no title": (table(*ROWS), f"# Task board\n\n{table(*ROWS)}", ["title_added"]),
    "a title that is empty": (f"# \n{table()}", f"# Task board\n{table()}", ["title_changed"]),
    "a title that is nothing without them": (f"# \x00\n{table()}", f"# Task board\n{table()}", ["title_changed"]),
    "control characters in the title": (f"# a\x00b\n{table()}", f"# a b\n{table()}", ["title_changed"]),
    "no table": ("# x\nwords", f"# x\n\n{table()}\n\nwords", ["table_added"]),
    "nothing": ("", f"# Task board\n\n{table()}", ["table_added", "title_added"]),
    "no separator": (f"# x\n{HEADER}\n{ROWS[0]}", titled(ROWS[0]), ["header_redrawn"]),
    "a broken separator": (
        f"# x\n{HEADER}\n|--|==|\n{ROWS[0]}",
        titled(ROWS[0]),
        ["row_dropped", "header_redrawn"],
    ),
    "text right below": (titled(*ROWS, "words"), titled(*ROWS, "", "words"), ["text_parted"]),
    "the header once more": (titled(ROWS[0], HEADER, RULE, ROWS[1]), titled(*ROWS), ["row_dropped", "row_dropped"]),
    "a status that is meant": (
        titled("|T9|a|Done|b|c|", "|T8||Failed|||"),
        titled("| T9 | a | completed | b | c |", "|T8||Failed|||"),
        ["status_spelled"],
    ),
    "an equal row twice": (titled(ROWS[0], ROWS[0]), titled(ROWS[0]), ["row_merged"]),
    "a second board": (
        f"{titled(ROWS[0])}\n\n{table(ROWS[1])}\n\nwords",
        f"{titled(*ROWS)}\n\n\nwords",
        ["table_merged"],
    ),
    "a board behind an open fence": (
        f"```\n{table()}",
        f"# Task board\n\n{table()}\n\n```\n{table()}",
        ["table_added", "title_added"],
    ),
    "a byte order mark": (f"\ufeff{table()}", f"\ufeff# Task board\n\n{table()}", ["title_added"]),
    "a title that looks like a header": (
        f"# {HEADER}\n\n{table('|T1|')}",
        f"# {HEADER}\n\n{table('| T1 |  | pending |  |  |')}\n\n{KEPT_WORDS}\n\n```text\n|T1|\n```",
        ["row_mended", "status_guessed"],
    ),
    "front matter": (
        "---\na: b\n---\nwords",
        f"---\na: b\n---\n# Task board\n\n{table()}\n\nwords",
        ["table_added", "title_added"],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_form_is_mended(name):
    """Title, header and separator are made sound; sound rows, and what stands around, stay (promise B3)."""
    text, mended, what = BROKEN[name]
    healed = board.heal(text)
    assert healed.text.rstrip("\n") == mended
    assert [change.what for change in healed.changes] == what


def t9(status="pending", scope="a", branch="b", verification="c"):
    """What was read of a row."""
    return BoardTask(id="T9", scope=scope, status=status, branch=branch, verification=verification)


KEPT = {
    "an unknown status": ("|T9|a|nonsense|b|c|", t9(), True),
    "too few cells": ("|T9|a|failed|", t9("failed", branch="", verification=""), False),
    "an id alone": ("|T9", t9(scope="", branch="", verification=""), True),
    "a pipe in the scope": ("|T9|a|x|failed|b|c|", t9("failed", scope="a | x"), False),
    "a pipe in the verification": ("|T9|a|failed|b|c|x|", t9("failed", verification="c | x"), False),
    "a control character": ("|T9|a\x00b|failed|b|c|", t9("failed", scope="a b"), False),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_row_that_can_be_read_in_part(name):
    """What can be read of a row stays in the table, and its line is kept below; a guess is called one (promise B3)."""
    line, task, guessed = KEPT[name]
    text = titled(*ROWS, line, "", "Below.")
    healed = board.heal(text)
    assert healed.board.tasks == (*board.parse(HEALTHY).tasks, task)
    assert f"```text\n{line}\n```\n\nBelow." in healed.text
    assert healed.text.startswith(titled(*ROWS))
    assert (("status_guessed", "T9") in done(healed)) == guessed
    tracked = board.heal(text, {"T9": "blocked"})
    assert tracked.board.get("T9") == replace(task, status="blocked")
    assert ("status_guessed", "T9") not in done(tracked)


@pytest.mark.parametrize("line", ["||a|failed|b|c|", "|T\u200b9|a|failed|b|c|"])
def test_a_row_that_cannot_be_read(line):
    """A row without an id is kept below the table as it was."""
    healed = board.heal(titled(*ROWS, line))
    assert healed.text == titled(
        *ROWS, "", "Lines that were in the table and could not stay there as they were:", "", "```text", line, "```\n"
    )
    assert done(healed) == [("row_kept", None)]


def test_one_id_twice():
    """The first row stays, and the line of another one is kept."""
    healed = board.heal(titled(ROWS[0], "|T1|other|failed|b|c|"))
    assert healed.board.tasks == (BoardTask(id="T1", scope="a", branch="b", verification="c"),)
    assert "```text\n|T1|other|failed|b|c|\n```" in healed.text


def test_columns():
    """Columns that are missing are added, and what others hold is kept with their header."""
    text = "# x\n\n| Status | Owner | ID |\n|---|---|---|\n| failed | ada | T1 |\n"
    healed = board.heal(text, {"T1": "completed"})
    assert healed.board.tasks == (BoardTask(id="T1", status="completed"),)
    assert "```text\n| Status | Owner | ID |\n| failed | ada | T1 |\n```\n" in healed.text
    assert "| Status | ID | Scope | Branch | Verification |\n" in healed.text


def test_a_fence_of_the_right_length():
    """Backticks in a line that is kept do not end its code block."""
    healed = board.heal(titled("|T9|````|failed|"))
    assert "`````text\n|T9|````|failed|\n`````" in healed.text


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_endings(end):
    """Lines that are added end as the others do."""
    healed = board.heal(titled("|T9|", "").replace("\n", end), {"T8": "pending"})
    assert healed.text.replace(end, "").isprintable()


# ------------------------------------------------------------------------------------------- whatever it is
@settings(max_examples=150, deadline=None)
@given(broken(), st.lists(tasks(), max_size=3, unique_by=lambda task: task.id))
def test_whatever_it_is(text, tracked):
    """A healed board is valid, has all that is tracked, and healing it again changes nothing (promise B3)."""
    healed = board.heal(text, tracked)
    assert board.validate(healed.text) == []
    assert board.parse(healed.text) == healed.board
    for task in tracked:
        assert healed.board.get(task.id).status is task.status
    again = board.heal(healed.text, tracked)
    assert (again.text, again.changes) == (healed.text, ())
    assert healed.changed == (healed.text != text)


@some
@given(boards(least=1), st.data())
def test_no_row_is_lost(text, data):
    """However another line is broken, a sound row stays, or if it cannot be read, its line (promise B3)."""
    source = board.parse(text)._source
    lines = list(source.lines)
    harmed = data.draw(st.integers(0, len(lines) - 1))
    lines[harmed] = lines[harmed]._replace(text=data.draw(st.text("|`-x#~ \x00", max_size=8)))
    healed = board.heal("".join(line.text + line.end for line in lines))
    for at, task in source.rows.values():
        assert at == harmed or healed.board.get(task.id) == task or lines[at].text in healed.text


@some
@given(st.text(alphabet="|-\\` \t\r\n#>:~<!aTI1\ufeff\x00", max_size=60), st.booleans())
def test_any_text(text, known):
    """Every text can be made a board, with all of its words in it."""
    healed = board.heal(text, {"T1": "completed"} if known else None)
    assert board.validate(healed.text) == []
    assert board.heal(healed.text, {"T1": "completed"} if known else None).text == healed.text


@some
@given(broken(), st.lists(tasks(), max_size=3, unique_by=lambda task: task.id))
def test_what_cannot_be_mended_in_place(text, found):
    """A text that is set aside as a whole stands below a valid board, with each of its lines."""
    rows = mending._Rows(tasks={task.id: task for task in found})
    made = mending._set_aside(read(text), rows, "Task board")
    assert board.validate(made) == []
    assert board.parse(made).tasks == tuple(found)
    assert "\n".join(read(text).texts) in made
