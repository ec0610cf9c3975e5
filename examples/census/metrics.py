"""What the census measures: plain functions, without Celery."""

from __future__ import annotations

import ast
import io
import os
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Any

from radon.visitors import ComplexityVisitor

__all__ = ["COUNTS", "TOP_LEVEL", "UnreadableSource", "measure_file", "measure_source", "sources", "summarise"]

COUNTS = ("files", "lines", "code", "comment", "blank", "functions", "classes", "complexity")
TOP_LEVEL = "(top level)"

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LAYOUT = {tokenize.ENCODING, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


class UnreadableSource(ValueError):
    """A file that is not Python source of this interpreter: its encoding or its syntax is wrong."""


def sources(directory: Path) -> list[str]:
    """Every Python file below the directory, sorted; without hidden directories and installed packages."""
    found = []
    for folder, names, files in os.walk(directory):
        names[:] = [
            name for name in names if not name.startswith(".") and name not in {"site-packages", "dist-packages"}
        ]
        found += [os.path.join(folder, name) for name in files if name.endswith(".py")]  # noqa: PTH118 - a tenth of the time
    return sorted(found)


def measure_file(path: str) -> dict[str, Any]:
    """Measure one file.

    Raises:
        UnreadableSource: see `measure_source`.
        OSError: the file cannot be read.
    """
    return {"path": path, **measure_source(Path(path).read_bytes(), path)}


def measure_source(data: bytes, path: str) -> dict[str, Any]:
    """Count the lines, functions and classes of a source, and the cyclomatic complexity of each function.

    A line with any code on it is code (a docstring is, as any string), one with only a comment is comment, the rest is
    blank. The complexity is radon's: 1, plus 1 for each way to branch.

    Raises:
        UnreadableSource: the source cannot be decoded or parsed; says where and why.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a measured file is not our warning
            tree = ast.parse(data, filename=path)
        lines = _count_lines(data)
    except (SyntaxError, UnicodeDecodeError, ValueError, tokenize.TokenError) as error:
        raise UnreadableSource(f"{path}: {_reason(error)}") from error
    definitions = list(_definitions(tree.body, ""))
    functions = [_complexity(name, node) for name, node in definitions if isinstance(node, _FUNCTIONS)]
    return {**lines, "classes": len(definitions) - len(functions), "functions": functions}


def summarise(results: Iterable[dict[str, Any]], *, top: int = 10) -> dict[str, Any]:
    """Add up measured files by package (the first directory below what they share); name the most complex functions."""
    results = list(results)
    paths = [Path(result["path"]) for result in results]
    root = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    total, packages = dict.fromkeys(COUNTS, 0), dict[str, dict[str, int]]()
    for path, result in zip(paths, results, strict=True):
        folders = path.relative_to(root).parts[:-1]
        package = packages.setdefault(folders[0] if folders else TOP_LEVEL, dict.fromkeys(COUNTS, 0))
        for name, amount in _amounts(result).items():
            package[name] += amount
            total[name] += amount
    functions = chain.from_iterable(
        ({"path": result["path"], **function} for function in result["functions"]) for result in results
    )
    hardest = nlargest(top, functions, key=lambda function: int(function["complexity"]))
    return {"root": str(root), "total": total, "packages": dict(sorted(packages.items())), "most_complex": hardest}


def _amounts(result: dict[str, Any]) -> dict[str, int]:
    counted = {name: result[name] for name in ("lines", "code", "comment", "blank", "classes")}
    functions = result["functions"]
    complexity = sum(function["complexity"] for function in functions)
    return {"files": 1, **counted, "functions": len(functions), "complexity": complexity}


def _count_lines(data: bytes) -> dict[str, int]:
    code, comment, last = set[int](), set[int](), 1
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        first, last = token.start[0], token.end[0]
        if token.type == tokenize.COMMENT:
            comment.add(first)
        elif token.type not in _LAYOUT:
            code.update(range(first, last + 1))
    lines = last - 1  # the end marker stands on the line after the last
    only_comment = len(comment - code)
    return {"lines": lines, "code": len(code), "comment": only_comment, "blank": lines - len(code) - only_comment}


def _definitions(body: Iterable[ast.AST], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Every function and class with its dotted name, however deep: radon alone leaves out classes inside functions."""
    for node in body:
        inner = prefix
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield prefix + node.name, node
            inner = f"{prefix}{node.name}."
        for block in _BLOCKS:
            children = getattr(node, block, None)
            if isinstance(children, list):
                yield from _definitions(children, inner)


def _complexity(name: str, node: ast.AST) -> dict[str, Any]:
    visitor = ComplexityVisitor(off=False)
    visitor.visit(node)
    return {"name": name, "line": visitor.functions[0].lineno, "complexity": visitor.functions[0].complexity}


def _reason(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}" if error.lineno else error.msg
    return str(error)
