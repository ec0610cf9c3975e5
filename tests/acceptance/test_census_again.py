"""The census program, run again: what was measured before is not measured again."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.fixture
def census(tmp_path):
    """Run the program over a directory of its own; gives that directory, and a function that runs and reports."""
    sources = tmp_path / "sources"
    sources.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("POIMEN_")}
    environment |= {"PYTHONPATH": str(ROOT), "POIMEN_DATA_DIR": str(tmp_path / "data")}
    command = [sys.executable, "-m", "examples.census", "--dir", str(sources), "--workers", "1", "--json"]

    def run():
        out = [*command, "--out", str(tmp_path / "report.json")]
        done = subprocess.run(out, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return sources, run


def test_second_run(census):
    """The second run computes only what changed, knows what moved, and measures the same (promise C9)."""
    directory, run = census
    for number in range(4):
        (directory / f"m{number}.py").write_text(f"def f{number}():\n    return {number}\n")
    first = run()
    assert (first["cache"]["known"], first["cache"]["seconds_saved"], first["total"]["files"]) == (0, 0, 4)
    (directory / "m1.py").write_text("def changed():\n    pass\n\ndef more():\n    pass\n")
    (directory / "m2.py").rename(directory / "moved.py")
    second = run()
    assert second["cache"]["known"] == 3
    assert second["cache"]["seconds_saved"] > 0
    measured = {entry["path"]: entry for entry in second["files"]}
    assert [function["name"] for function in measured[str(directory / "m1.py")]["functions"]] == ["changed", "more"]
    assert [function["name"] for function in measured[str(directory / "moved.py")]["functions"]] == ["f2"]
    same = str(directory / "m0.py")
    assert measured[same] == next(entry for entry in first["files"] if entry["path"] == same)
