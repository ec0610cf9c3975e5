"""Kills of sealer, server and producer; `tests/bench/audit_kills.py` does a thousand of them."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT


def test_nothing_is_lost_and_nothing_comes_twice(tmp_path) -> None:
    """Whoever dies at whatever step: each event that was answered is sealed once, in order (promise A8)."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.audit_kills", str(tmp_path / "run"), "--kills", "20", "--seed", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] >= 20
    assert told["events"] >= 100
    wrong = {name: told[name] for name in ("lost", "twice", "disorder", "unknown", "left")}
    assert wrong == dict.fromkeys(wrong, 0)
    assert told["verified"]
    assert set(told["kinds"]) <= {"step", "item.cancelled", "audit.recovered"}
