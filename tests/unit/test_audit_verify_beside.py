"""A log is verified while its sealer works: what the sealer removes meanwhile is no problem."""

from __future__ import annotations

import os
import shutil

from poimen_tasks.audit import verify as verifying
from poimen_tasks.audit.log import SealedLog
from tests.unit.audit_logs import entries


def test_partial_tiles_that_go_meanwhile(tmp_path, monkeypatch):
    """A directory of partial tiles that is removed while they are looked through is not foreign, and ends nothing."""
    with SealedLog.open(tmp_path / "log", origin="shop") as log:
        log.append(entries(0, 40))
        log.seal()
    tiles = tmp_path / "log" / "tile"
    partial = next(path for path in tiles.rglob("*.p") if path.is_dir())
    walk = os.walk

    def walk_late(place):
        for found in walk(place):
            if str(place) == str(tiles):
                shutil.rmtree(partial, ignore_errors=True)
            yield found

    monkeypatch.setattr(verifying.os, "walk", walk_late)
    report = verifying.verify(tmp_path / "log")
    assert not partial.exists()
    assert report.problems == []
