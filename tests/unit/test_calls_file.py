"""The files of `poimen run`: how calls are read and checked, and how a file of outcomes grows."""

from __future__ import annotations

import json
import os
import threading

import pytest
from celery import Celery

from poimen_tasks import DuplicateItem, InvalidArgument, Item, Poimen, PoimenError, SerializationError, UnknownTask
from poimen_tasks.cli.calls_file import KEYS, CallsFile, Stopped, _Ids
from poimen_tasks.cli.outcome_file import OutcomeFile, RunNote

ADD = {"task": "shop.add", "args": [1, 2]}


@pytest.fixture(scope="module")
def poimen():
    """An app with some tasks; it opens no connection."""
    app = Celery("shop", broker="redis://127.0.0.1:1/0", set_as_current=False)

    @app.task(name="shop.add", shared=False)
    def add(x, y=1):
        return x + y

    @app.task(name="shop.limited", shared=False, rate_limit="1/s")
    def limited():
        return None

    return Poimen(app, max_argument_bytes=1000)


@pytest.fixture
def read(poimen, tmp_path):
    """Write lines to a file, check it, and read its calls; returns the members and the file."""

    def run(content, *, queue=None):
        if not isinstance(content, bytes):
            content = "\n".join(json.dumps(row) if isinstance(row, dict) else row for row in content).encode()
        path = tmp_path / "calls.jsonl"
        path.write_bytes(content)
        with CallsFile(path, poimen, queue=queue, priority="normal") as calls:
            calls.check()
            return list(calls.members()), calls

    return run


# ------------------------------------------------------------------------------------------- what is taken
def test_a_call_is_a_signature(read):
    """A line with a task and arguments is a signature of that task; without arguments they are empty."""
    (full, bare), calls = read([{**ADD, "kwargs": {"y": 3}, "args": [1]}, {"task": "shop.add", "args": [5]}])
    assert [full["args"], full["kwargs"], bare["args"], bare["kwargs"]] == [[1], {"y": 3}, [5], {}]
    assert (calls.count, calls.is_file) == (2, True)


def test_labels_and_options(read):
    """What an item is called and how it runs stand beside its arguments; null is the same as nothing."""
    labels = {"id": "a", "task_id": "T1", "model_id": "m", "tags": ["x", "y"], "limit_key": "k"}
    options = {"queue": "gpu", "priority": "low", "countdown": 5, "expires": 60, "time_limit": 9, "soft_time_limit": 8}
    (item,), _ = read([{**ADD, **labels, **options, "eta": None}])
    assert isinstance(item, Item)
    assert {name: getattr(item, name) for name in labels} == labels
    assert item.signature["options"] == options
    assert {*labels, *options, "eta", "task", "args", "kwargs"} == set(KEYS)


def test_how_lines_end(read):
    """A byte order mark, CRLF, blank lines and a last line without an end are taken as people write them."""
    line = json.dumps(ADD).encode()
    members, calls = read(b"\xef\xbb\xbf" + line + b"\r\n\r\n   \n" + line + b"\n\n" + line)
    assert (len(members), calls.count) == (3, 3)


def test_no_lines(read):
    """A file of nothing, or of blank lines, has no calls."""
    assert [read(text)[0] for text in (b"", b"\n", b"\xef\xbb\xbf\r\n \n")] == [[], [], []]


def test_lines_longer_than_a_block(poimen, tmp_path):
    """Lines are put together whatever their length, and in order."""
    path = tmp_path / "calls.jsonl"
    rows = ({"task": "shop.add", "args": [n, "x" * 900]} for n in range(60))
    path.write_text("".join(f"{json.dumps(row)}{' ' * 1000 * n}\n" for n, row in enumerate(rows)))
    with CallsFile(path, poimen, queue=None, priority="normal") as calls:
        calls.check()
        assert [member["args"][0] for member in calls.members()] == list(range(60))


def test_the_digest_is_of_the_content(read):
    """The same bytes have the same digest, and other bytes another one."""
    first, second, third = (read([{**ADD, "args": [n]}])[1].digest for n in (1, 1, 2))
    assert first == second != third


# ------------------------------------------------------------------------------------------- what is refused
BAD = [
    ('{"task": "shop.add", "args": [1]', InvalidArgument, ["not JSON", "column 33"]),
    ("[1]", InvalidArgument, ["expected an object", "[1]"]),
    ('"text"', InvalidArgument, ["expected an object"]),
    ('{"task": "shop.add", "args": [NaN]}', InvalidArgument, ["NaN", "use null"]),
    ('{"task": "shop.add", "args": [-Infinity]}', InvalidArgument, ["-Infinity"]),
    ('{"task": "shop.add", "args": [1e999]}', InvalidArgument, ["1e999", "too large"]),
    ('{"task": "shop.add", "args": [{"a": 1, "a": 2}]}', InvalidArgument, ["'a'", "twice"]),
    ('{"task": "shop.add"} {"task": "shop.add"}', InvalidArgument, ["not JSON", "column 22"]),
    ("[" * 50_000, InvalidArgument, ["nested too deep"]),
    ({"tsk": "shop.add"}, InvalidArgument, ["unknown key 'tsk'", "did you mean 'task'", "limit_key"]),
    ({"args": [1]}, InvalidArgument, ['"task"', "there is none"]),
    ({"task": 5}, InvalidArgument, ['"task"', "got a number"]),
    ({"task": "shop.ad"}, UnknownTask, ["'shop.ad'", "app 'shop'", "did you mean 'shop.add'"]),
    ({"task": "shop.limited"}, PoimenError, ["rate_limit"]),
    ({**ADD, "args": 3}, InvalidArgument, ['"args"', "a list", "got a number"]),
    ({**ADD, "args": {"x": 1}}, InvalidArgument, ['"args"', "a list", "got an object"]),
    ({**ADD, "kwargs": [1]}, InvalidArgument, ['"kwargs"', "an object", "got a list"]),
    ({**ADD, "tags": "x"}, InvalidArgument, ['"tags"', "a list", "got a text"]),
    ({**ADD, "tags": [1]}, PoimenError, ["tag"]),
    ({"task": "shop.add"}, PoimenError, ["arguments do not fit", "'x'"]),
    ({**ADD, "args": [1, 2, 3]}, PoimenError, ["arguments do not fit"]),
    ({**ADD, "id": 7}, PoimenError, ['"id"', "printable", "int"]),
    ({**ADD, "id": "a\nb"}, PoimenError, ['"id"', "printable"]),
    ({**ADD, "queue": "a/b"}, PoimenError, ["queue", "a/b"]),
    ({**ADD, "priority": "urgent"}, InvalidArgument, ["priority", "urgent"]),
    ({**ADD, "countdown": "soon"}, InvalidArgument, ["countdown", "soon"]),
    ({**ADD, "time_limit": -1}, InvalidArgument, ["time_limit", "-1"]),
    ({**ADD, "args": [1 << 70]}, SerializationError, ["args[0]", "int"]),
    ({**ADD, "args": [["\ud800"]]}, SerializationError, ["args[0][0]", "surrogate"]),
    ({**ADD, "args": ["x" * 2000]}, SerializationError, ["args", "1,000"]),
]


@pytest.mark.parametrize(("row", "kind", "words"), BAD)
def test_bad_lines(read, row, kind, words):
    """Whatever is wrong with a line is said with the file's name, the line's number, the thing and what is allowed."""
    with pytest.raises(kind) as caught:
        read([ADD, "", row, ADD])
    assert "calls.jsonl line 3: " in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_not_utf8(read):
    """A byte that is not UTF-8 is named with its place."""
    with pytest.raises(InvalidArgument, match=r"line 2: not UTF-8: byte 0xe9 at byte 4"):
        read(json.dumps(ADD).encode() + b'\n{"t\xe9sk": 1}\n')


def test_a_line_without_end(read):
    """A line that is longer than any call is refused before it fills the memory."""
    with pytest.raises(InvalidArgument, match=r"line 2: longer than"):
        read(json.dumps(ADD).encode() + b"\n" + b" " * 200_000)


@pytest.mark.parametrize(
    ("rows", "line", "shown"),
    [
        ([{"id": "a"}, {"id": "b"}, {"id": "a"}], 3, "a"),
        ([{}, {}, {"id": "1"}], 3, "1"),
        ([{"id": "2"}, {}, {}], 3, "2"),
        ([{"id": "a"}, {"id": "1"}, {"id": "1"}], 3, "1"),
    ],
)
def test_ids_are_unique(read, rows, line, shown):
    """An id that an earlier call has, as its own or as its position, is refused with its line."""
    with pytest.raises(DuplicateItem, match=rf'line {line}: .*"{shown}"'):
        read([{**ADD, **row} for row in rows])


def test_ids_that_look_like_positions(read):
    """Numbers as ids are fine while no two calls are known by one."""
    ids = ["1", "2", "00", None, "4x"]
    assert len(read([{**ADD, "id": item_id} for item_id in ids])[0]) == 5


def test_many_ids():
    """The set of ids grows, forgets none and invents none."""
    ids = _Ids()
    assert all(ids.add(f"id-{n}") for n in range(50_000))
    assert not any(ids.add(f"id-{n}") for n in range(0, 50_000, 7))


def test_a_queue_for_all(read):
    """A queue that every call would go to is checked with the first line."""
    with pytest.raises(PoimenError, match="queue"):
        read([ADD], queue="a/b")


@pytest.mark.parametrize("name", ["nothing.jsonl", "."])
def test_what_cannot_be_read(poimen, tmp_path, name):
    """A file that is not there, or that is none, is named."""
    with pytest.raises(InvalidArgument, match="cannot read"):
        CallsFile(tmp_path / name, poimen, queue=None, priority="normal").check()


# ------------------------------------------------------------------------------------------- pipes
@pytest.fixture
def pipe(poimen, tmp_path):
    """A named pipe and its calls; the writing end is a file object."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    keeps_open = os.open(path, os.O_RDWR)
    with CallsFile(path, poimen, queue=None, priority="normal") as calls, path.open("wb", buffering=0) as writer:
        os.close(keeps_open)
        yield calls, writer


def test_a_pipe_is_read_as_it_comes(pipe):
    """Calls come out of a pipe while its writer goes on; they are checked on the way."""
    calls, writer = pipe
    members = calls.members()
    for n in range(3):
        writer.write(json.dumps({**ADD, "args": [n]}).encode() + b"\n")
        assert next(members)["args"] == [n]
    writer.write(b"nonsense\n")
    with pytest.raises(InvalidArgument, match=r"pipe line 4: not JSON"):
        next(members)
    assert not calls.is_file


def test_a_pipe_that_is_given_up(pipe):
    """Who waits for a pipe can be told to stop, and then knows that the calls are not whole."""
    calls, _ = pipe
    seen = []

    def wait():
        try:
            next(calls.members())
        except Stopped:
            seen.append("stopped")

    reader = threading.Thread(target=wait)
    reader.start()
    calls.stop()
    reader.join(10)
    assert seen == ["stopped"]


def test_an_end_that_is_none(pipe):
    """A pipe that ends because its writer was interrupted too is not taken for a whole one."""
    calls, writer = pipe
    members = calls.members()
    writer.write(json.dumps(ADD).encode() + b"\n")
    assert next(members)
    calls.stop()
    writer.close()
    with pytest.raises(Stopped):
        next(members)


# ------------------------------------------------------------------------------------------- outcomes
def line(cursor, **more):
    return json.dumps({"item_id": str(cursor), "cursor": cursor, **more}).encode() + b"\n"


@pytest.fixture
def out(tmp_path):
    """Where the outcomes go."""
    return tmp_path / "out.jsonl"


@pytest.mark.parametrize(
    ("torn", "cursor"),
    [(b"", 9), (b"{", 9), (line(10)[:-1], 9), (b"x" * 200_000, 9), (line(10, result="y" * 200_000), 10)],
)
def test_a_torn_line_is_cut(out, torn, cursor):
    """A file ends with its last whole line, which says where to go on, however long a line is."""
    whole = line(8) + line(9)
    out.write_bytes(whole + torn)
    with OutcomeFile(out, resume=True) as file:
        assert file.cursor == cursor
        file.write(line(11))
    assert out.read_bytes() == (whole if cursor == 9 else whole + torn) + line(11)


@pytest.mark.parametrize("content", [b"", b"{torn"])
def test_no_whole_line(out, content):
    """A file without a whole line begins anew."""
    out.write_bytes(content)
    with OutcomeFile(out, resume=True) as file:
        assert file.cursor is None
    assert out.read_bytes() == b""


@pytest.mark.parametrize("content", [b"precious\n", b'{"cursor": "9"}\n', b"[1]\n", b'{"item_id": "1"}\n'])
def test_a_file_of_something_else(out, content):
    """A file that does not end with an outcome is left alone."""
    out.write_bytes(content)
    with pytest.raises(InvalidArgument, match="does not end with an outcome"):
        OutcomeFile(out, resume=True)
    assert out.read_bytes() == content


def test_content_is_not_written_over(out):
    """Without --resume a file has to be empty, or missing."""
    out.write_bytes(line(1))
    with pytest.raises(InvalidArgument, match="--resume"):
        OutcomeFile(out, resume=False)
    out.write_bytes(b"")
    with OutcomeFile(out, resume=False) as file:
        assert file.cursor is None


def test_one_run_at_a_time(out):
    """A file that another run writes is refused until that one has ended."""
    with OutcomeFile(out, resume=True), pytest.raises(InvalidArgument, match="another `poimen run`"):
        OutcomeFile(out, resume=True)
    with OutcomeFile(out, resume=True):
        pass


def test_places_that_cannot_be_written(tmp_path):
    """A place that cannot be written is named; a device takes outcomes, and cannot be gone on with."""
    with pytest.raises(InvalidArgument, match="No such file"):
        OutcomeFile(tmp_path / "no" / "where", resume=False)
    null = tmp_path / "null"
    null.symlink_to(os.devnull)
    with OutcomeFile(null, resume=False) as file:
        file.begin("b1")
        file.write(line(1))
        file.finish({})
    assert not RunNote(null).path.exists()
    with pytest.raises(InvalidArgument, match="not a regular file"):
        OutcomeFile(null, resume=True)


def test_the_note(out):
    """The note beside the file has the batch's id before the batch is there, and its end when all outcomes are."""
    with OutcomeFile(out, resume=False) as file:
        assert file.note.batch_id is None
        file.begin("b1")
        assert (RunNote(out).batch_id, RunNote(out).ended) == ("b1", None)
        file.finish({"state": "completed"})
        assert (RunNote(out).batch_id, RunNote(out).ended) == ("b1", {"state": "completed"})
        file.begin("b1")
        assert RunNote(out).ended is None


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "{}"])
def test_a_note_of_something_else(out, text):
    """A file in the note's place that is none is named, and left alone."""
    out.with_name("out.jsonl.run").write_text(text)
    with pytest.raises(InvalidArgument, match=r"out\.jsonl\.run"):
        OutcomeFile(out, resume=True)
