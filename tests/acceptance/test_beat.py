"""A batch on a schedule: the example's app, real beats, and messages that come twice."""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import nursery
from tests.conftest import ROOT, Workers, eventually

APP = "examples.nightly.tasks"


@pytest.fixture(scope="module")
def env(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Settings for the example: a slot each second."""
    prices = tmp_path_factory.mktemp("prices") / "prices.csv"
    return {**module_env, "NIGHTLY_EVERY": "1", "NIGHTLY_PRICES": str(prices)}


@pytest.fixture(scope="module")
def nightly(env: dict[str, str]) -> Iterator[ModuleType]:
    """The example in this process. Imported once: its tasks become known to every app that is made afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        module = importlib.import_module(APP)
        yield module
        module.poimen.store.client.close()
        module.app.close()


@pytest.fixture
def beat(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Starts a `celery beat` process under a name."""
    beats: list[Any] = []

    def start(name: str) -> None:
        command = ["celery", "-A", APP, "beat", "-s", str(tmp_path / name), "--pidfile=", "-l", "info"]
        with (tmp_path / f"{name}.log").open("wb") as log:
            beats.append(nursery.start(command, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, stdout=log))

    yield start
    for process in beats:
        process.kill()
        process.wait()


def test_two_beats_start_one_batch_a_slot(
    nightly: ModuleType, beat: Callable[[str], None], workers: Workers, env: dict[str, str]
) -> None:
    """Two beats, and a message that is delivered again: one batch a slot, and each item runs once."""
    worker = workers.start(APP, concurrency=2, env=env, args=("--without-mingle", "--without-gossip"))
    beat("one")
    beat("two")

    def starts() -> Counter[str]:
        return Counter(re.findall(r"nightly\.start\[\S+ succeeded in \S+ '(nightly-\S+)'", worker.text()))

    eventually(lambda: sum(count > 1 for count in starts().values()) >= 2, timeout=40)
    again = next(iter(starts()))
    message = {"date": again.removeprefix("nightly-")}
    for _ in range(2):
        nightly.start.apply_async(kwargs=message, task_id=f"again-{again}").get(timeout=20)
    batches = nightly.poimen.batches()
    assert len({batch.id for batch in batches}) == len(batches) >= 2
    for batch in batches:
        assert batch.wait(timeout=20).succeeded == len(nightly.SHOPS)
    runs = Counter(tuple(line.split(",")[:2]) for line in nightly.PRICES.read_text().splitlines())
    assert set(runs.values()) == {1}
    assert {f"nightly-{date}" for date, _ in runs} >= set(starts())


def test_the_night_is_named_by_its_date(nightly: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the trial setting, what beat puts into the message is the date by the app's clock."""
    monkeypatch.setattr(nightly, "EVERY", 0.0)
    sent = nightly.app.conf.beat_schedule["nightly"]["kwargs"]["date"]
    before = nightly.app.now()
    assert sent() in {f"{before:%Y-%m-%d}", f"{nightly.app.now():%Y-%m-%d}"}
