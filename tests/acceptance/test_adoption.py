"""A Celery project that was there before: laid out as Django's, and nothing of it is changed."""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, chord, group

from poimen_tasks import BatchState, ItemStatus, Outcome, Poimen
from tests import nursery
from tests.acceptance.projects import HERE, path_to, project
from tests.conftest import ROOT, Worker, Workers, eventually

ACME = HERE / "acme"
GUIDE = ROOT / "docs" / "adopting.md"


@pytest.fixture(scope="module")
def acme_env(module_env: dict[str, str]) -> dict[str, str]:
    """The project knows its Redis by a variable of its own; Poimen takes the app's broker."""
    url = module_env["POIMEN_REDIS_URL"]
    own = {name: value for name, value in module_env.items() if not name.endswith("_URL")}
    return {**own, "ACME_REDIS_URL": url}


@pytest.fixture(scope="module")
def acme(acme_env: dict[str, str]) -> Iterator[ModuleType]:
    """The project's app in this process, its tasks imported."""
    with project("acme.celery", acme_env, ACME) as module:
        for name in ("orders.tasks", "orders.nightly", "billing.tasks"):
            importlib.import_module(name)
        yield module
        module.poimen.store.client.close()
        module.app.close()


@pytest.fixture(scope="module")
def orders(acme: ModuleType) -> ModuleType:
    """Tasks that know no app."""
    return sys.modules["orders.tasks"]


@pytest.fixture(scope="module")
def billing(acme: ModuleType) -> ModuleType:
    """Tasks of the app."""
    return sys.modules["billing.tasks"]


def poimen_worker(group_: Workers, *words: str) -> Worker:
    """A worker started by `poimen worker`."""
    name = f"p{secrets.token_hex(3)}@test"
    log = group_.directory / f"{name}.log"
    with log.open("wb") as out:
        process = nursery.start(
            ["poimen_tasks.cli", "worker", "-n", name, *words],
            env={**os.environ, **group_.env},
            stdout=out,
            new_session=True,
        )
    worker = Worker(process, name, log)
    group_.all.append(worker)
    return worker


@pytest.fixture(scope="module")
def fleet(acme_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A `celery -A acme worker` for every queue, and a `poimen worker -A acme` for one more; gives their names."""
    group_ = Workers(tmp_path_factory.mktemp("workers"), {**acme_env, "PYTHONPATH": path_to(ACME)})
    plain = group_.start("acme", concurrency=2, mingle=True, wait=False)
    ours = poimen_worker(group_, "-A", "acme", "-c", "1", "-Q", "nightly")
    for worker in (plain, ours):
        group_.wait_ready(worker)
    yield [plain.name, ours.name]
    group_.destroy_all()


def run(acme: ModuleType, signature: Any) -> Outcome:
    """Run one call as a batch and give its outcome."""
    return next(iter(acme.poimen.dispatch([signature]).outcomes(timeout=30)))


def lines(path: Path) -> list[list[Any]]:
    """What hooks and bodies noted."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# ------------------------------------------------------------------------------------------- the app stays itself
def test_nothing_of_the_app_changes(redis_url: str) -> None:
    """`Poimen(app)` and a dispatch change no setting of the app, and add only tasks named `poimen.*`."""

    def mine() -> None:
        """A task of the app."""

    def made() -> Celery:
        app = Celery("before", broker=redis_url, backend=redis_url, set_as_current=False)
        app.conf.update(task_default_queue="mine", task_acks_late=False, worker_prefetch_multiplier=7)
        app.task(mine, name="mine", shared=False)
        return app

    other, app = made(), made()
    poimen = Poimen(app, namespace=f"t{secrets.token_hex(4)}")
    poimen.dispatch([app.tasks["mine"].s()])
    assert dict(app.conf) == dict(other.conf)
    added = set(app.tasks) - set(other.tasks)
    assert {"poimen.lane", "poimen.callback"} <= added
    assert all(name.startswith("poimen.") for name in added)
    assert set(other.tasks) <= set(app.tasks)
    poimen.store.client.close()


@pytest.mark.usefixtures("fleet")
def test_both_ways_to_start_a_worker(acme: ModuleType, orders: ModuleType, fleet: list[str]) -> None:
    """`celery -A acme worker` and `poimen worker -A acme` serve the same batch, each its queues."""
    work = [orders.charge.s(order).set(queue="nightly" if order % 2 else "orders") for order in range(10)]
    outcomes = list(acme.poimen.dispatch(work).outcomes(timeout=30))
    assert {(int(one.item_id) % 2, one.worker) for one in outcomes} == {(0, fleet[0]), (1, fleet[1])}
    assert all(one.result["order"] == int(one.item_id) for one in outcomes)


@pytest.mark.usefixtures("fleet")
def test_the_guide_s_producer(acme: ModuleType) -> None:
    """A chord of shared tasks runs by their route, its body gets the results, and dispatching again finds it."""
    nightly = sys.modules["orders.nightly"]
    batch = nightly.charge_all(range(25), "2025-11-29")
    assert batch.callback_result(timeout=30) == sum(order * 100 for order in range(25))
    assert nightly.charge_all(range(25), "2025-11-29").id == batch.id
    assert batch.status().total == 25


def test_doctor_says_what_to_change(acme: ModuleType) -> None:
    """The settings of the project that hurt are listed, each with the value to set."""
    found = {one.subject: one.advice for one in acme.poimen.doctor() if one.check == "celery"}
    assert found["worker_disable_prefetch"] == "set worker_disable_prefetch = True"
    assert found["task_acks_late"] == "set task_acks_late = True"


# ------------------------------------------------------------------------------------------- kinds of tasks
@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("name", ["fetch", "fetch_below", "fetch_again"])
def test_shared_tasks_retry(acme: ModuleType, orders: ModuleType, tmp_path: Path, name: str) -> None:
    """A policy above and below `@shared_task`, and `autoretry_for` with backoff, count in a batch (promise R1)."""
    outcome = run(acme, getattr(orders, name).s(str(tmp_path / "runs")))
    assert (outcome.result, outcome.attempts) == (3, 3)


HOOKS = {
    "works": ["before_start", "call", "body", "on_success", "after_return"],
    "fails": ["before_start", "call", "body", "on_failure", "after_return"],
    "retries": [
        *("before_start", "call", "body", "on_retry"),
        *("before_start", "call", "body", "on_success", "after_return"),
    ],
}


@pytest.mark.usefixtures("fleet")
@pytest.mark.parametrize("how", HOOKS)
@pytest.mark.parametrize("base", ["hooked", "bare"])
def test_hooks_of_a_base_class(acme: ModuleType, billing: ModuleType, tmp_path: Path, base: str, how: str) -> None:
    """`__call__` and the hooks of an abstract base run once an attempt, with the item's message id."""
    path = tmp_path / "notes"
    batch = acme.poimen.dispatch([getattr(billing, base).s(str(path), how)])
    report = batch.wait(timeout=30)
    assert (report.succeeded, report.failed) == ((0, 1) if how == "fails" else (1, 0))
    assert [word for word, _ in lines(path)] == HOOKS[how]
    assert {message for _, message in lines(path)} == {f"{batch.id}.0"}


@pytest.mark.usefixtures("fleet")
def test_a_failing_hook_does_not_change_how_it_ended(acme: ModuleType, billing: ModuleType, tmp_path: Path) -> None:
    """What a hook raises is logged; the outcome is the body's, and a retry is made."""
    work = [billing.broken.s(str(tmp_path / how), how) for how in HOOKS]
    outcomes = {one.item_id: one for one in acme.poimen.dispatch(work).outcomes(timeout=30)}
    assert (outcomes["0"].status, outcomes["0"].result) == (ItemStatus.SUCCEEDED, "works")
    assert (outcomes["1"].error.type, outcomes["1"].error.message) == ("ValueError", "fails")
    assert (outcomes["2"].result, outcomes["2"].attempts) == ("retries", 2)


@pytest.mark.usefixtures("fleet")
def test_a_task_that_is_a_class(acme: ModuleType, billing: ModuleType) -> None:
    """A class with `run`, registered with the app, is an activity like any other, also in a map."""
    report = acme.poimen.dispatch(acme.poimen.map(billing.invoice, [100, 250])).wait(timeout=30)
    assert list(report.results.values()) == ["1.00 EUR", "2.50 EUR"]


@pytest.mark.usefixtures("fleet")
def test_a_task_declared_after_the_app_was_finalised(acme: ModuleType, billing: ModuleType, tmp_path: Path) -> None:
    """Its policy counts in a batch and in a plain message, though registering a class has finalised the app."""
    assert run(acme, billing.late.s(str(tmp_path / "batch"))).result == "twice"
    assert billing.late.delay(str(tmp_path / "plain")).get(timeout=30) == "twice"


@pytest.mark.usefixtures("fleet")
def test_pydantic_tasks(acme: ModuleType, billing: ModuleType) -> None:
    """Models travel as their values, the body gets a model, and what it returns is plain again."""
    address = billing.Address(street="Rue", number=3)
    work = [billing.label.s(address), billing.label.s({"street": "Weg", "number": 2}, copies=2), billing.label.s({})]
    outcomes = {one.item_id: one for one in acme.poimen.dispatch(work).outcomes(timeout=30)}
    assert outcomes["0"].result == {"street": "RUE", "number": 3}
    assert outcomes["1"].result == {"street": "WEG", "number": 4}
    assert outcomes["2"].error.type.endswith("ValidationError")


# ------------------------------------------------------------------------------------------- routes
@pytest.mark.usefixtures("fleet")
def test_routes_are_the_app_s(acme: ModuleType, orders: ModuleType, billing: ModuleType) -> None:
    """A glob, an exchange with a routing key, and a router that looks at arguments decide as for plain messages."""
    work = [orders.where.s(), billing.daily.s(), billing.parcel.s(7), billing.parcel.s(700)]
    batch = acme.poimen.dispatch(work)
    results = batch.wait(timeout=30).results
    assert (results["0"]["routing_key"], results["0"]["priority"]) == ("orders", 6)
    assert [results[place] for place in "123"] == ["report.daily", "celery", "heavy"]
    parts = acme.poimen.store.reads.parts(batch.id)
    assert {part.queue for part in parts} == {"orders", "reports", "celery", "heavy"}
    plain = group(orders.where.s(), billing.daily.s(), billing.parcel.s(700))().get(timeout=30)
    assert [plain[0]["routing_key"], *plain[1:]] == ["orders", "report.daily", "heavy"]


# ------------------------------------------------------------------------------------------- eager
@pytest.fixture
def eager(acme: ModuleType) -> Iterator[None]:
    """The setting that projects use in their tests."""
    acme.app.conf.task_always_eager = True
    yield
    acme.app.conf.task_always_eager = False


@pytest.mark.usefixtures("eager")
def test_eager(acme: ModuleType, orders: ModuleType, billing: ModuleType, tmp_path: Path) -> None:
    """With `task_always_eager` of the project's tests, batch and body run in the caller."""
    batch = acme.poimen.dispatch(chord(group(orders.charge.s(n) for n in range(3)), orders.bill.s()))
    assert (batch.status().state, batch.callback_result(timeout=5)) == (BatchState.COMPLETED, 300)
    assert run(acme, orders.fetch.s(str(tmp_path / "runs"))).attempts == 3
    assert run(acme, billing.hooked.s(str(tmp_path / "notes"), "works")).result == "works"
    assert [word for word, _ in lines(tmp_path / "notes")] == HOOKS["works"]


# ------------------------------------------------------------------------------------------- the guide
def snippets() -> dict[str, str]:
    """Path and text of every file that the guide shows."""
    shown = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return {path: text.strip() for path, text in shown}


def test_the_guide_shows_the_project() -> None:
    """Every file that the guide shows is in the project that these tests run, line for line."""
    assert {"acme/celery.py", "acme/__init__.py", "orders/tasks.py", "orders/nightly.py"} <= set(snippets())
    for path, text in snippets().items():
        pieces = [piece.strip() for piece in re.split(r"\n+# …\n", text)]
        held = (ACME / path).read_text(encoding="utf-8")
        assert all(piece in held for piece in pieces), path


@pytest.mark.usefixtures("fleet")
def test_plain_calls_go_on(orders: ModuleType) -> None:
    """Plain messages and Celery's own chord of the same tasks work as before."""
    assert orders.charge.delay(3).get(timeout=30) == {"order": 3, "cents": 300}
    done = chord([orders.charge.s(n) for n in range(3)])(orders.bill.s())
    assert eventually(lambda: done.get(timeout=30)) == 300
