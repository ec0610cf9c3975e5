"""What README and docs say: the code runs as written, links lead somewhere, tables and promises agree with the code."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from poimen_tasks import Settings
from tests.conftest import ROOT, Workers

MOST_LINES = 20
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
PROMISE = re.compile(r"^### ([A-Z]\d+): ", re.MULTILINE)
CITED = re.compile(r"\bpromises? ([A-Z]\d+(?:(?:, | and )[A-Z]\d+)*)")


# ------------------------------------------------------------------------------------------- the code
def code_of(page: Path) -> str:
    """The first block of Python on a page."""
    return re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The README's code in a file of its own."""
    path = tmp_path / "readme" / "shop.py"
    path.parent.mkdir()
    path.write_text(code_of(ROOT / "README.md"), encoding="utf-8")
    return path


def test_the_readme_code_is_short() -> None:
    """The producer of the README has twenty lines at most, empty ones included."""
    assert len(code_of(ROOT / "README.md").splitlines()) <= MOST_LINES


def test_the_readme_code_runs(shop: Path, workers: Workers, worker_env: dict[str, str]) -> None:
    """The README's code runs as written: the producer prints each outcome and the sum (promise D1)."""
    env = {**worker_env, "PYTHONPATH": os.pathsep.join((str(shop.parent), str(ROOT)))}
    workers.start("shop", env=env)
    done = subprocess.run(
        [sys.executable, "shop.py"],
        cwd=shop.parent,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *outcomes, last = done.stdout.splitlines()
    assert sorted(outcomes) == ["0 succeeded 2", "1 succeeded 2", "2 succeeded 2"]
    assert last.startswith("6 BatchReport(")


# ------------------------------------------------------------------------------------------- links
def links() -> Iterator[tuple[Path, str, str]]:
    """Page, text and target of every relative link."""
    for page in PAGES:
        for text, target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target:
                yield page, text, target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def functions(path: Path) -> dict[str, str]:
    """Name and docstring of every function in a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_link_leads_somewhere() -> None:
    """Relative links of README and docs lead to a file, to a heading that is there, and to a test of that name."""
    broken = []
    for page, text, target in links():
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        name = text.strip("`")
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{page.name}: {target}")
        elif name.startswith("test_") and name not in functions(path):
            broken.append(f"{page.name}: {name} is not in {place}")
    assert not broken


def test_every_page_is_linked() -> None:
    """Every page of docs is linked from the README."""
    linked = {
        (page.parent / target.partition("#")[0]).resolve() for page, _, target in links() if page.name == "README.md"
    }
    assert set(DOCS.glob("*.md")) <= linked


# ------------------------------------------------------------------------------------------- promises
def promises() -> dict[str, str]:
    """Id and text of every promise that holds today."""
    _, *pieces = PROMISE.split((DOCS / "promises.md").read_text(encoding="utf-8"))
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


def cited(text: str) -> set[str]:
    """The promises that a text cites."""
    return {name for found in CITED.findall(text) for name in re.findall(r"[A-Z]\d+", found)}


def test_every_promise_names_its_proof() -> None:
    """Each promise names a test that cites it, or the benchmark that measures it."""
    unproved = []
    for name, text in promises().items():
        found = [
            (shown.strip("`"), (DOCS / target).resolve()) for shown, target in LINK.findall(text) if "/tests/" in target
        ]
        tests = [(shown, path) for shown, path in found if shown.startswith("test_")]
        if not found or not all(name in cited(functions(path).get(shown, "")) for shown, path in tests):
            unproved.append(name)
    assert not unproved


def test_every_cited_promise_exists() -> None:
    """A test cites only promises that stand in the list."""
    unknown = {
        f"{path.name}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in cited(path.read_text(encoding="utf-8")) - promises().keys()
        if path != Path(__file__).resolve()
    }
    assert not unknown


# ------------------------------------------------------------------------------------------- settings
def default_text(name: str) -> str:
    """A setting's default as the page shows it."""
    value = Settings.model_fields[name].default
    if name == "audit_dir":
        return "`audit` below `POIMEN_DATA_DIR`"
    if name == "tick":
        return "0.5, or half of a shorter lease"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else f"{value}" if isinstance(value, int) else f"`{value}`"


def settings_table() -> list[str]:
    """The table of the settings page, from the code: meanings are those of the class's docstring."""
    said = re.findall(r"^    (\w+): (.*)$", inspect.getdoc(Settings) or "", re.MULTILINE)
    meanings = {name: text.rstrip(".") for name, text in said}
    rows = [
        f"| `POIMEN_{name.upper()}` | {default_text(name)} | {meanings[name]} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return ["| variable | default | meaning | allowed |", "|---|---|---|---|", *rows]


def test_the_settings_page_is_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting stands on its page with the default, meaning and range that the code has."""
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("|")]
    assert shown == settings_table(), "docs/settings.md should have:\n" + "\n".join(settings_table())
    for name in [name for name in os.environ if name.startswith("POIMEN_")]:
        monkeypatch.delenv(name)
    assert Settings().tick == 0.5
    assert Settings().audit_dir == Settings().data_dir / "audit"


def test_settings_without_effect_are_told() -> None:
    """The settings that the page calls unused are exactly those that no module reads."""
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`POIMEN_(\w+)`", page.partition("## No effect yet")[2]))
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "poimen_tasks").rglob("*.py") if path.name != "settings.py"
    )
    unused = {name.upper() for name in Settings.model_fields if not re.search(rf"ettings(\(\))?\.{name}\b", code)}
    assert told == unused
