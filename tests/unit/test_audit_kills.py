"""A sealer may be killed at any step, and the power may go: nothing is lost or there twice, the order holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize("seed", [1_000, 2_000])
def test_kills_at_every_step(tmp_path, seed):
    """Thirty sealers each die at seeded calls of the disk, half of them with what was not synced (promise A6)."""
    command = [sys.executable, "-m", "tests.unit.audit_kills", str(tmp_path / "audit"), str(seed), "30"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("{'kills': 30, 'faults': 0,")
