"""Task boards as texts: what is valid, what is wrong and where, and that writing back changes nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poimen_tasks import BoardInvalid, BoardTask, InvalidArgument, InvalidId, TaskStatus, board
from poimen_tasks.board.task import MOST_CHARACTERS
from tests.conftest import ROOT
from tests.unit.boards import HEADER, RULE, boards, broken, ids, table, tasks, titled, titles

some = settings(max_examples=50, deadline=None)

VALID = f"""# Release

Some words.

{HEADER}
{RULE}
| T1 | parse | completed | w/parse | `make test` |
| T2 | render | In progress | w/render | a \\| b |

Below.
"""


def problems(text):
    """Line and kind of each problem."""
    return [(problem.line, problem.fault) for problem in board.validate(text)]


# ------------------------------------------------------------------------------------------- validating
def test_valid():
    """A title and a table with the five columns are all that a board needs (promise B1)."""
    assert board.validate(VALID) == []
    assert board.validate(f"# x\n{HEADER}\n{RULE}") == []


WRONG = {
    "nothing": ("", [(1, "title_missing"), (1, "table_missing")]),
    "no title": (VALID.replace("# Release", "Release"), [(1, "title_missing")]),
    "an empty title": (VALID.replace("# Release", "# "), [(1, "title_empty")]),
    "a title of the second level": (VALID.replace("# R", "## R"), [(1, "title_missing")]),
    "a title without a space": (VALID.replace("# R", "#R"), [(1, "title_missing")]),
    "a title below the table": (table() + "\n# Late\n", [(1, "title_missing")]),
    "a title in a code block": ("```\n# x\n```\n" + table(), [(1, "title_missing")]),
    "a control character in the title": ("# a\x1bb\n" + table(), [(1, "control_character")]),
    "no table": ("# x\n\nwords\n", [(3, "table_missing")]),
    "a table in a code block": (f"# x\n~~~ md\n{table()}\n~~~\n", [(5, "table_missing")]),
    "a table in a comment": (f"# x\n<!--\n{table()}\n-->\n", [(5, "table_missing")]),
    "a missing column": (titled(names="ID Scope Status Branch"), [(2, "column_missing")]),
    "a column twice": (titled(names="ID Scope Status Branch Verification Scope"), [(2, "column_duplicate")]),
    "a column too many": (titled(names="ID Scope Status Branch Verification Owner"), [(2, "column_unknown")]),
    "no separator": (f"# x\n{HEADER}\n| T1 | a | pending | b | c |\n", [(3, "separator_broken")]),
    "no separator at the end": (f"# x\n{HEADER}", [(2, "separator_broken")]),
    "a broken separator": (f"# x\n{HEADER}\n|---|--- -|---|---|---|\n", [(3, "separator_broken")]),
    "a separator of equal signs": (f"# x\n{HEADER}\n|===|===|===|===|===|\n", [(3, "separator_broken")]),
    "a short separator": (f"# x\n{HEADER}\n|---|---|\n", [(3, "separator_broken")]),
    "too few cells": (titled("| T1 | a | pending | b |"), [(4, "cell_count")]),
    "too many cells": (titled("| T1 | a | pending | b | c | d |"), [(4, "cell_count")]),
    "a pipe in a code span": (titled("| T1 | `a | b` | pending | b | c |"), [(4, "cell_count")]),
    "text right below": (titled("words"), [(4, "cell_count")]),
    "an empty id": (titled("|  | a | pending | b | c |"), [(4, "id_empty")]),
    "a long id": (titled(f"| {'T' * 257} | a | pending | b | c |"), [(4, "id_invalid")]),
    "an invisible id": (titled("| T\u200b1 | a | pending | b | c |"), [(4, "id_invalid")]),
    "an id twice": (titled("|T1|a|pending|b|c|", "|T1|d|failed|e|f|"), [(5, "id_duplicate")]),
    "an unknown status": (titled("|T1|a|done|b|c|"), [(4, "status_unknown")]),
    "an empty status": (titled("|T1|a||b|c|"), [(4, "status_unknown")]),
    "a control character": (titled("|T1|a\x00|pending|b|c|"), [(4, "control_character")]),
    "a mark of direction": (titled("|T1|a|pending|b\u202e|c|"), [(4, "control_character")]),
    "a line separator": (titled("|T1|a|pending|b|c\u2028d|"), [(4, "control_character")]),
    "half of a character": (titled("|T1|a|pending|b|\udc80|"), [(4, "control_character")]),
    "a long cell": (titled(f"|T1|{'a' * (MOST_CHARACTERS + 1)}|pending|b|c|"), [(4, "too_long")]),
    "the header once more": (titled(HEADER, RULE), [(4, "row_repeated"), (5, "row_repeated")]),
    "two boards": (f"{titled()}\n\n{table()}", [(5, "table_second")]),
    "several": (
        table("|T1|a|done|b|c|", "|T1|a|pending|b|"),
        [(1, "title_missing"), (3, "status_unknown"), (4, "cell_count")],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong(name):
    """Each fault has its line and its kind, in the order of the lines (promise B1)."""
    text, found = WRONG[name]
    assert problems(text) == found
    for problem in board.validate(text):
        assert str(problem) == f"line {problem.line}: {problem.message}"
        assert problem.to_dict() == {"line": problem.line, "fault": problem.fault, "message": problem.message}
        assert problem.message.isprintable()


SAID = {
    "an unknown status": r"status 'done' is not known; did you mean completed\? Expected one of pending, in_progress,",
    "a missing column": "column Verification is missing; expected ID, Scope, Status, Branch, Verification",
    "too many cells": r"6 cells; expected 5, as the header has: a \| that belongs to a cell is written \\\|, in `code`",
    "text right below": "1 cell; expected 5, as the header has, or an empty line between the table and what follows",
    "an id twice": "ID 'T1' stands in line 4 already; expected each once",
    "a broken separator": r"expected a row of hyphens, \|---\|---\|---\|---\|---\| below the header, got '\|---\|--- -",
    "a title below the table": "the title stands below the table, in line 3",
    "a control character": r"Scope holds the character U\+0000; allowed is text on one line",
    "two boards": "a second table of tasks; a board has one, here that of line 2",
}


@pytest.mark.parametrize("name", SAID)
def test_what_it_says(name):
    """A problem says what is wrong and what is allowed."""
    with pytest.raises(BoardInvalid, match=SAID[name]):
        board.parse(WRONG[name][0])


SOUND = {
    "columns in any order and case": titled(
        "| pending | T1 | v | s | b |", names="STATUS id Verification scope Branch"
    ),
    "without outer pipes": (
        "# x\nID | Scope | Status | Branch | Verification\n:-- | - | :-: | --: | -\nT1 | a | pending | b | c\n"
    ),
    "empty cells": titled("|T1||pending|||"),
    "a pipe with a backslash, in code too": titled("|T1|`a \\| b`|pending|b|c|"),
    "CRLF": titled("|T1|a|pending|b|c|", "").replace("\n", "\r\n"),
    "CR": titled("|T1|a|pending|b|c|", "").replace("\n", "\r"),
    "mixed line endings": "# x\r\n" + table("|T1|a|pending|b|c|\r|T2|a|pending|b|c|"),
    "a byte order mark": "\ufeff" + titled(),
    "front matter": "---\n# no title\n---\n" + titled(),
    "front matter behind a byte order mark": "\ufeff---\na: b\n---\n" + titled(),
    "a title with closing signs": "# x ##\n" + table(),
    "a title that ends as one is closed": "# x # ##\n" + table(),
    "a title of a closing sign": "# # #\n" + table(),
    "a title with three spaces before it": "   # x\n" + table(),
    "a heading right below": titled("## More"),
    "a quotation right below": titled("> More"),
    "a list right below": titled("- More"),
    "another table": f"# x\n| a | b |\n|---|---|\n| c | d |\n\n{table()}\n\n| ID | Owner |\n|---|---|\n| T1 | ada |\n",
    "a board in a code block": f"{titled()}\n\n```\n{table('|T1|a|done|b|')}\n```\n",
    "a board in a longer fence": f"{titled()}\n\n````\n```\n{table()}\n```\n````\n",
    "a board behind an open fence": f"{titled()}\n\n```\n{table()}\n",
    "a comment": f"<!-- {HEADER} -->\n{titled()}\n<!--\n{table()}\n-->",
    "an indented table": f"{titled()}\n\n    {HEADER}\n    {RULE}\n",
    "an emoji of several characters": titled("|T1|\U0001f469\u200d\U0001f4bb a|pending|b|c|"),
    "a heading that looks like a header": f"# x\n# {HEADER}\n{table()}",
    "a second title": titled("", "# y"),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound(name):
    """What Markdown allows, and what is no part of the board, is no fault; and it is written back as it was."""
    text = SOUND[name]
    assert board.validate(text) == []
    assert board.render(board.parse(text)) == text


def test_a_return_alone_takes_no_empty_line():
    """A row behind which an empty line ends with a line feed is not made one with it by its own carriage return."""
    text = f"# x\n\n{HEADER}\r{RULE}\n\nwords"
    one = replace(board.parse(text), tasks=(BoardTask(id="T1"),))
    written = board.render(one)
    assert written == f"# x\n\n{HEADER}\r{RULE}\n| T1 |  | pending |  |  |\r\n\nwords"
    assert board.parse(written) == one
    fewer = f"# x\n\n{HEADER}\n{RULE}\r|T1||pending|||\n\nwords"
    assert board.render(replace(board.parse(fewer), tasks=())) == f"# x\n\n{HEADER}\n{RULE}\r\n\nwords"


def test_no_text():
    """What is no text is refused with its kind, not read as one."""
    for verb in (board.validate, board.parse, board.heal):
        for value in (b"# x", None, 5):
            with pytest.raises(InvalidArgument, match="board: expected the text of a Markdown file, as a str, got"):
                verb(value)


@pytest.mark.parametrize(
    "text",
    [
        "|" * 30_000,
        "# " + " " * 30_000 + "x",
        "\\" * 30_000 + "|",
        "`" * 30_000,
        "```\n" * 6_000,
        "<!--" * 6_000,
        "| a " * 6_000 + "\n" + "|---" * 6_000,
        f"# x\n{HEADER}\n" * 3_000,
        titled("| T1 |\n" * 6_000),
        titled("x\n" * 6_000),
        "#" * 30_000,
        "-" * 30_000 + "\n" + "---\n" * 1_000,
        titled(f"|{'-' * 30_000}|a|b|c|d|"),
        "\r" * 30_000,
    ],
    ids=lambda text: text[:12].encode("unicode_escape").decode(),
)
@pytest.mark.timeout(30)
def test_large_texts(text):
    """Whatever a large text is made of, it is read and mended in one pass: anything more would not end in time."""
    assert board.validate(text)
    assert board.validate(board.heal(text).text) == []


@some
@given(st.text(alphabet="|-\\` \t\r\n#>:~<!aTI1\ufeff\x00", max_size=60))
def test_any_text_is_read(text):
    """Every text is either a board or has a problem with a line of its own; nothing else happens."""
    found = board.validate(text)
    lines = text.count("\n") + text.count("\r") + 1
    assert all(1 <= problem.line <= lines for problem in found)
    if found:
        with pytest.raises(BoardInvalid) as raised:
            board.parse(text)
        assert raised.value.problems == tuple(found)
    else:
        assert board.render(board.parse(text)) == text


def test_the_page():
    """The board on the page is one, and the page's rules are those of the code."""
    page = (ROOT / "docs" / "board.md").read_text(encoding="utf-8")
    shown = page.partition("```markdown\n")[2].partition("```")[0]
    assert board.validate(shown) == []
    assert [str(task.status) for task in board.parse(shown).tasks] == ["completed", "in_progress"]
    (rule,) = [line for line in page.splitlines() if line.startswith("| Status |")]
    assert re.findall(r"`(\w+)`", rule) == list(TaskStatus)
    assert f"at most {MOST_CHARACTERS:,} characters" in page
    said = str(board.validate(shown.replace("In progress", "done"))[0])
    assert said.partition("Expected one of pending, ")[0] in page


# ------------------------------------------------------------------------------------------- parsing
def test_parse():
    """Title and tasks are values; an escaped pipe is a pipe (promise B2)."""
    found = board.parse(VALID)
    assert found.title == "Release"
    assert found.tasks == (
        BoardTask(id="T1", scope="parse", status="completed", branch="w/parse", verification="`make test`"),
        BoardTask(id="T2", scope="render", status="in_progress", branch="w/render", verification="a | b"),
    )
    assert found.get("T2") is found.tasks[1]
    assert found.get("T3") is None
    assert found.to_dict()["tasks"][0]["status"] == "completed"


def test_an_invalid_board():
    """One error names the first problem, says how many more there are, and has all of them (promise B2)."""
    with pytest.raises(BoardInvalid, match=r"^line 1: no title.* \(and 2 more problems\)$") as raised:
        board.parse(WRONG["several"][0])
    assert len(raised.value.problems) == 3
    with pytest.raises(BoardInvalid, match=r"^line 1: no title; expected a line `# ` and some words above the table$"):
        board.parse(WRONG["no title"][0])


@some
@given(boards())
@example(VALID)
def test_writing_back(text):
    """A valid board that was parsed is written back byte for byte (promise B2)."""
    assert board.validate(text) == []
    assert board.render(board.parse(text)) == text


@some
@given(boards(least=1), st.data())
def test_a_changed_task_changes_its_row(text, data):
    """A changed task changes its row alone, and says what it should when it is read again (promise B2)."""
    was = board.parse(text)
    old = data.draw(st.sampled_from(was.tasks))
    new = data.draw(tasks(id=st.just(old.id)))
    changed = board.render(was.with_task(new))
    again = board.parse(changed)
    assert again.tasks == tuple(new if task.id == new.id else task for task in was.tasks)
    before, after = text.splitlines(), changed.splitlines()
    assert len(before) == len(after)
    differ = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert len(differ) == (new != old)


@some
@given(boards(), st.lists(tasks(), max_size=4, unique_by=lambda task: task.id), titles())
def test_other_tasks_and_title(text, others, title):
    """Any tasks and any title may take the place of those that were there; what stands around stays."""
    was = board.parse(text)
    mixed = {task.id: task for task in (*others, *was.tasks[::-1])}
    made = replace(was, tasks=tuple(mixed.values()), title=title)
    again = board.parse(board.render(made))
    assert (again.title, again.tasks) == (title, made.tasks)
    assert board.render(again) == board.render(made)


@some
@given(titles(), st.lists(tasks(), max_size=5, unique_by=lambda task: task.id))
def test_a_board_of_ones_own(title, rows):
    """A board that is made from nothing is written so that it is read as the same."""
    made = board.Board(title=title, tasks=tuple(rows))
    text = board.render(made)
    assert board.validate(text) == []
    assert board.parse(text) == made


def test_only_the_cell_changes():
    """In a row that changes only the cells that differ are written anew, as wide as they were where that is enough."""
    text = f"# x\n{HEADER}\n{RULE}\n|  T1 |   words   | in progress |b|c|\n"
    was = board.parse(text)
    new = replace(was.tasks[0], status="completed", branch="b\\", scope="a lot more words")
    row = board.render(was.with_task(new)).splitlines()[3]
    assert row == "|  T1 |   a lot more words | completed   |b\\ |c|"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_endings_stay(end):
    """Rows that are added end as the others do; a last line without an ending keeps that."""
    text = titled("|T1|a|pending|b|c|").replace("\n", end)
    more = board.render(board.parse(text).with_task(BoardTask(id="T2")))
    assert more == f"{text}{end}| T2 |  | pending |  |  |{end}"


BAD_TASKS = {
    "no id": ({"id": ""}, InvalidId, "task id: expected 1-256 printable characters, got ''"),
    "an id with a line break": ({"id": "a\nb"}, InvalidId, "task id: expected 1-256 printable characters"),
    "an id with spaces around": ({"id": " a"}, InvalidId, "task id: expected no space at either end, got ' a'"),
    "a number as id": ({"id": 5}, InvalidId, "task id: expected .* got int"),
    "no status": ({"id": "a", "status": "done"}, InvalidArgument, "status: expected one of pending, .* got 'done'"),
    "a number as status": ({"id": "a", "status": 1}, InvalidArgument, "status: expected one of pending"),
    "a scope on two lines": ({"id": "a", "scope": "a\nb"}, InvalidArgument, r"scope: holds the character U\+000A"),
    "a branch with a space behind": ({"id": "a", "branch": "b "}, InvalidArgument, "branch: begins or ends with a sp"),
    "no text": ({"id": "a", "verification": None}, InvalidArgument, "verification: expected a text, got None"),
    "a long text": ({"id": "a", "scope": "x" * 2001}, InvalidArgument, "scope: has 2,001 characters; allowed are at"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_what_is_no_task(name):
    """A part that a board could not hold is refused, with its name and what is allowed."""
    values, kind, said = BAD_TASKS[name]
    with pytest.raises(kind, match=said):
        BoardTask(**values)


@pytest.mark.parametrize("title", ["#", "##", "# #", "x #", "x ## #", "x#", "# x", "\\"])
def test_a_title_like_a_heading(title):
    """A title that a heading would lose the end of is closed once more, so that it is read as it was."""
    for made in (board.Board(title=title), replace(board.parse(titled()), title=title)):
        assert board.parse(board.render(made)).title == title
    assert board.heal("", title=title).board.title == title
    assert board.heal(f"# {title} #\x00\n{table()}").board.title == f"{title} #"


def test_what_is_no_board():
    """A board without a title, with something else than tasks, or with one id twice is refused."""
    task = BoardTask(id="T1")
    for title, rows, said in (
        ("", (), "title: expected some words, got ''"),
        ("a\nb", (), "title: holds the character"),
        ("x", ("T1",), "tasks: expected values of BoardTask, got 'T1'"),
        ("x", (task, task), "tasks: id 'T1' stands twice"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            board.Board(title=title, tasks=rows)


@pytest.mark.parametrize("text", ["In Progress", "in-progress", "IN_PROGRESS", "in progress"])
def test_spellings_of_a_status(text):
    """A status may be written in any case, with spaces, hyphens or underscores between its words."""
    assert TaskStatus.read(text) is TaskStatus.IN_PROGRESS
    assert BoardTask(id="a", status=text).status is TaskStatus.IN_PROGRESS


@some
@given(broken())
def test_problems_are_told_by_line(text):
    """However a board is broken, its problems come in the order of the lines, and each says something."""
    found = board.validate(text)
    assert [problem.line for problem in found] == sorted(problem.line for problem in found)
    assert all(problem.message and problem.fault for problem in found)


@some
@given(ids())
def test_ids_fit_in_cells(value):
    """Every id that a task may have is read from a cell as the same."""
    assert board.parse(board.render(board.Board(title="x", tasks=(BoardTask(id=value),)))).tasks[0].id == value
