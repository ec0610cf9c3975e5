"""The census's own functions, on real files of the standard library and on bad ones."""

from __future__ import annotations

import ast
import inspect
import io
import json
import json.decoder
from pathlib import Path

import pytest
from rich.console import Console

from examples.census.metrics import COUNTS, TOP_LEVEL, UnreadableSource, measure_file, sources, summarise
from examples.census.report import failure, render, write
from poimen_tasks.model import ErrorInfo, ItemStatus, Outcome


@pytest.fixture
def source(tmp_path):
    """Write a file and return its path."""

    def write_source(content, name="module.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write_source


def counts(result):
    return {name: result[name] for name in ("lines", "code", "comment", "blank")}


def test_a_known_file(source):
    """Code, comment and blank lines are told apart, a comment behind code is code, and each branch counts."""
    path = source(
        "# about\n"
        "\n"
        "def f(x):  # behind code\n"
        '    """Doc\n'
        "\n"
        '    string."""\n'
        "    if x and x > 1:\n"
        "        return [y for y in x if y]\n"
        "    # inside\n"
        "    class Local:\n"
        "        async def g(self):\n"
        "            pass\n"
    )
    result = measure_file(path)
    assert counts(result) == {"lines": 12, "code": 9, "comment": 2, "blank": 1}
    assert result["classes"] == 1
    assert result["functions"] == [
        {"name": "f", "line": 3, "complexity": 5},
        {"name": "f.Local.g", "line": 11, "complexity": 1},
    ]


@pytest.mark.parametrize("module", [json.decoder, ast, inspect], ids=lambda module: module.__name__)
def test_real_files(module):
    """On real modules the lines add up, and every function and class of the syntax tree is counted."""
    path = module.__file__
    text = Path(path).read_text(encoding="utf-8")
    result = measure_file(path)
    nodes = list(ast.walk(ast.parse(text)))
    assert result["lines"] == len(text.splitlines()) == sum(counts(result).values()) - result["lines"]
    assert len(result["functions"]) == sum(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) for n in nodes)
    assert result["classes"] == sum(isinstance(n, ast.ClassDef) for n in nodes)
    assert min(function["complexity"] for function in result["functions"]) >= 1


@pytest.mark.parametrize("content", ["", "\n\n", "# only", "x = 1"], ids=["empty", "blank", "comment", "no newline"])
def test_small_files(source, content):
    """An empty file has no lines, and a last line without its newline is a line."""
    result = measure_file(source(content))
    assert result["lines"] == len(content.splitlines()) == result["code"] + result["comment"] + result["blank"]
    assert (result["functions"], result["classes"]) == ([], 0)


def test_declared_encoding(source):
    """A file in another encoding is measured when it declares it."""
    path = source("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    assert counts(measure_file(path)) == {"lines": 2, "code": 1, "comment": 1, "blank": 0}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x = 1\ndef broken(:\n", "line 2: invalid syntax"),
        ("print 'two'\n", "line 1: Missing parentheses"),
        (b"name = '\xe9'\n", "utf-8"),
        ("# coding: no-such\n", "no-such"),
        (b"x = 1\x00\n", "null bytes"),
        ("x = '''open\n", "unterminated"),
        ("if x:\npass\n", "expected an indented block"),
    ],
    ids=["syntax", "python 2", "not utf-8", "unknown encoding", "null byte", "open string", "indent"],
)
def test_unreadable_source(source, content, reason):
    """A file that does not decode or parse is refused with its path and the reason."""
    path = source(content)
    with pytest.raises(UnreadableSource, match=reason) as caught:
        measure_file(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_measuring_warns_nothing(source):
    """An odd escape in a measured file is not a warning of the census."""
    assert measure_file(source("x = '\\d'\n"))["code"] == 1


def test_a_result_is_plain():
    """A measurement consists of values that travel: it survives JSON unchanged."""
    result = measure_file(json.decoder.__file__)
    assert json.loads(json.dumps(result)) == result


def test_sources(tmp_path, source):
    """Python files are found sorted; hidden directories and installed packages are left out."""
    kept = [source("", name) for name in ("a.py", "b/c.py", "b/d/e.py")]
    for name in ("b/readme.txt", ".venv/x.py", "lib/site-packages/y.py", "b/dist-packages/z.py"):
        source("", name)
    assert sources(tmp_path) == sorted(kept)


def test_summarise(source):
    """Files are added up by the first directory below what they share, and the hardest functions are named."""
    easy, hard = "def f(): pass\n", "def g(x):\n    if x: pass\n    if x: pass\n\nclass C: pass\n"
    paths = [source(easy, "one.py"), source(hard, "pkg/two.py"), source(easy, "pkg/sub/three.py")]
    summary = summarise(map(measure_file, paths), top=2)
    assert summary["root"] == str(Path(paths[0]).parent)
    assert [(name, part["files"], part["functions"]) for name, part in summary["packages"].items()] == [
        (TOP_LEVEL, 1, 1),
        ("pkg", 2, 2),
    ]
    assert summary["total"] == {name: sum(p[name] for p in summary["packages"].values()) for name in COUNTS}
    assert (summary["total"]["complexity"], summary["total"]["classes"], summary["total"]["blank"]) == (5, 1, 1)
    assert [(f["name"], f["path"], f["complexity"]) for f in summary["most_complex"]] == [
        ("g", paths[1], 3),
        ("f", paths[0], 1),
    ]


def test_summarise_nothing():
    """No measured file gives a summary of zeros."""
    summary = summarise([])
    assert (set(summary["total"].values()), summary["packages"], summary["most_complex"]) == ({0}, {}, [])


@pytest.fixture
def report(source):
    """A whole report, as the program makes it."""
    path, bad = source("def f(): pass\n", "pkg/m.py"), source("", "pkg/bad.py")
    outcome = Outcome(
        (
            *(
                "0",
                ItemStatus.FAILED,
                None,
                ErrorInfo(type="examples.census.metrics.UnreadableSource", message=f"{bad}: line 1: [odd]"),
            ),
            *(None, 0.0, 0.0, 1, "w", False, 1),
        )
    )
    return {
        "directory": str(Path(path).parents[1]),
        "workers": 2,
        **summarise([measure_file(path)]),
        "failed": [failure(bad, outcome)],
        "speed": {"wall_time": 2.0, "total_task_time": 3.0, "speedup": 1.5, "efficiency": 0.75, "stats": {}},
    }


def test_render(report):
    """The terminal shows the counts, the function with its place, the failed file with its reason, and the speedup."""
    console = Console(file=io.StringIO(), width=120)
    render(report, console)
    text = console.file.getvalue()
    for fact in ("pkg/m.py:1", "pkg/bad.py", "line 1: [odd]", "1.50 x", "75%", "Not measured: 1"):
        assert fact in text


def test_write(report, tmp_path):
    """The report's file is made with its directories and holds exactly the report; no draft is left."""
    out = tmp_path / "build" / "census.json"
    write(report, out)
    assert json.loads(out.read_text(encoding="utf-8")) == report
    assert [path.name for path in out.parent.iterdir()] == ["census.json"]
