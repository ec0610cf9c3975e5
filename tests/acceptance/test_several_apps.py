"""Several apps in one process, one Poimen each; and apps that cannot have one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from celery import Celery, _state, chord

from poimen_tasks import Poimen, SettingsError, UnknownTask
from tests.acceptance.projects import HERE, path_to, project
from tests.conftest import Workers, eventually


@pytest.fixture(scope="module")
def apps(module_env: dict[str, str]) -> Iterator[ModuleType]:
    """Both apps in this process."""
    with project("two_apps", module_env) as module:
        yield module
        for poimen in (module.poimen_left, module.poimen_right):
            poimen.store.client.close()
            poimen.celery.close()


@pytest.fixture(scope="module")
def fleet(module_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """A worker for each app, the left one's first."""
    group = Workers(tmp_path_factory.mktemp("workers"), {**module_env, "PYTHONPATH": path_to(HERE)})
    for name in ("left", "right"):
        group.start(f"two_apps:{name}", concurrency=1, wait=False)
    for worker in group.all:
        group.wait_ready(worker)
    yield group
    group.destroy_all()


def test_a_task_stays_with_its_app(apps: ModuleType, fleet: Workers) -> None:
    """Two tasks of one name in two apps: each Poimen dispatches its own, to its own workers."""
    for poimen, task, word, worker in (
        (apps.poimen_left, apps.same_left, "left", fleet.all[0]),
        (apps.poimen_right, apps.same_right, "right", fleet.all[1]),
    ):
        outcomes = list(poimen.dispatch(poimen.map(task, range(20))).outcomes(timeout=30))
        assert {outcome.result for outcome in outcomes} == {f"{word} {number}" for number in range(20)}
        assert {outcome.worker for outcome in outcomes} == {worker.name}


def test_a_task_of_the_other_app_is_refused(apps: ModuleType) -> None:
    """The error names both apps, whether the other has a task of that name or not."""
    with pytest.raises(UnknownTask, match="'right', not of app 'left'"):
        apps.poimen_left.dispatch([apps.same_right.s(1)])
    with pytest.raises(UnknownTask, match=r"'two_apps\.dispatches' is not registered with app 'left'"):
        apps.poimen_left.dispatch([apps.dispatches.s()])


@pytest.mark.usefixtures("fleet")
def test_a_shared_task_is_everybody_s(apps: ModuleType) -> None:
    """Each app runs it as its own, with policy and autoretry, whichever app is current; callbacks stay, too."""
    for poimen, name in ((apps.poimen_left, "left"), (apps.poimen_right, "right")):
        outcome = next(poimen.dispatch([apps.shared.s()]).outcomes(timeout=30))
        assert (outcome.result, outcome.attempts) == (name, 2)
    batch = apps.poimen_left.dispatch(chord([apps.same_left.s(1), apps.shared.s()], apps.joined.s()))
    assert batch.callback_result(timeout=30) == ["left 1", "left"]


@pytest.mark.usefixtures("fleet")
def test_an_item_of_one_app_dispatches_for_the_other(apps: ModuleType) -> None:
    """From inside a worker of the right app a batch of the left one goes to the left one's workers."""
    outcome = next(apps.poimen_right.dispatch([apps.dispatches.s()]).outcomes(timeout=30))
    assert apps.poimen_left.batch(outcome.result).wait(timeout=30).results["0"] == "left 7"


@pytest.mark.usefixtures("fleet")
def test_a_state_without_a_result_backend(apps: ModuleType) -> None:
    """`self.update_state` does not fail where the app has no result backend."""
    outcome = next(apps.poimen_left.dispatch([apps.tells.s()]).outcomes(timeout=30))
    assert outcome.result == "told"


def test_a_worker_leaves_other_apps_alone(apps: ModuleType, fleet: Workers) -> None:
    """A worker opens no connection for the other apps of its module, one of which has no server."""
    apps.poimen_left.dispatch([apps.same_left.s(1)]).wait(timeout=30)
    for worker in fleet.all:
        assert "127.0.0.1:1/" not in worker.text()
        assert "no connection to the store" not in worker.text()


# ------------------------------------------------------------------------------------------- one each
def test_a_second_poimen_for_an_app(redis_url: str) -> None:
    """Two for one app would answer every signal twice: the second is refused, and says what to do instead."""
    app = Celery("mine", broker=redis_url, set_as_current=False)
    first = Poimen(app)
    with pytest.raises(SettingsError, match=r"app 'mine' has a Poimen already.*import it from there"):
        Poimen(app, namespace="other")
    with pytest.raises(SettingsError, match="already"):
        Poimen(first.celery)
    assert Poimen(Celery("mine", broker=redis_url, set_as_current=False)).celery is not app


# ------------------------------------------------------------------------------------------- no Redis
def test_a_worker_without_redis(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of an app without a Redis says once which variable to set, and runs plain tasks as before."""
    for name in ("POIMEN_REDIS_URL", "POIMEN_BROKER_URL"):
        workers.env.pop(name)
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "messages"
    (folder / "control").mkdir(parents=True)
    env = {"REDISLESS": str(folder), "PYTHONPATH": path_to(HERE)}
    worker = workers.start("redisless", concurrency=1, env=env)
    with project("redisless", env) as module:
        module.plain.delay()
        eventually((folder / "done").exists)
        with pytest.raises(SettingsError, match="POIMEN_REDIS_URL"):
            module.poimen.dispatch([module.plain.s()])
        module.app.close()
    (line,) = [line for line in worker.text().splitlines() if "serves no batches" in line]
    assert "POIMEN_REDIS_URL" in line
    assert "Traceback" not in worker.text()


# ------------------------------------------------------------------------------------------- no app yet
def test_tasks_that_came_before_the_app(worker_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`@shared_task` before any app exists belongs to the Poimen made later, with a policy above or below it."""
    # As in a fresh process: other tests have left apps behind, one of them as the current one.
    monkeypatch.setattr(_state._tls, "current_app", None)
    monkeypatch.setattr(_state, "default_app", None)
    with project("early", worker_env) as module:
        batch = module.poimen.dispatch([*module.before, module.below.s(3)])
        assert list(batch.wait(timeout=5).results.values()) == [1, 2, 3]
        assert [outcome.attempts for outcome in sorted(batch.outcomes(), key=lambda one: one.item_id)] == [2, 2, 1]
        module.poimen.store.client.close()
        module.poimen.celery.close()
