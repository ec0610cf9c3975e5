"""Bad input is one clear error of our tree, before anything is written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from poimen_tasks import (
    BatchExists,
    BatchState,
    DispatchAborted,
    DuplicateItem,
    InvalidArgument,
    InvalidId,
    Item,
    PayloadTooLarge,
    Poimen,
    PoimenError,
    SerializationError,
    SettingsError,
    StoreUnavailable,
    UnknownTask,
    UnsupportedWork,
)
from tests.acceptance.conftest import APP

Make = Callable[[ModuleType], Any]

CASES: dict[str, tuple[Make, type[PoimenError], str]] = {
    "argument that does not travel": (
        lambda m: [m.add.s(1, 2), m.echo.s({"rows": [1, {2}]})],
        SerializationError,
        r'item "1".*rows\[1\].*set',
    ),
    "dict with a number as key": (lambda m: [m.echo.s({1: 2})], SerializationError, 'item "0"'),
    "lone surrogate": (lambda m: [m.echo.s("\ud800")], SerializationError, 'item "0"'),
    "number over 64 bits": (lambda m: [m.echo.s(2**70)], SerializationError, 'item "0"'),
    "duplicate id": (lambda m: [Item(m.add.s(1, 1), id="a"), Item(m.add.s(1, 1), id="a")], DuplicateItem, '"a"'),
    "empty id": (lambda m: [Item(m.add.s(1, 1), id="")], InvalidId, "id of item 0.*got ''"),
    "long id": (lambda m: [Item(m.add.s(1, 1), id="x" * 257)], InvalidId, "256"),
    "id with a newline": (lambda m: [Item(m.add.s(1, 1), id="a\nb")], InvalidId, r"a\\nb"),
    "twice the same frozen signature": (lambda m: [frozen(m)] * 2, DuplicateItem, "used 2 times"),
    "argument over the limit": (lambda m: [m.echo.s("x" * 9_000_000)], PayloadTooLarge, 'item "0".*8,388,608'),
    "task of another app": (lambda _: [foreign().s(1)], UnknownTask, "foreign"),
    "chunks": (lambda m: m.add.chunks([(1, 2)], 1), UnsupportedWork, "chunks"),
    "map inside a list": (lambda m: [m.noop.map([1, 2])], UnsupportedWork, "map"),
    "nested chord": (lambda m: [chord([m.add.s(1, 1)], m.total.s())], UnsupportedWork, "chord"),
    "chain of two": (lambda m: [chain(m.add.s(1, 1), m.add.s(2))], UnsupportedWork, "chain of 2"),
    "empty group as a body": (lambda m: chord([m.add.s(1, 1)], group()), PoimenError, "group"),
    "task with a rate limit": (lambda m: [limited(m).s()], UnsupportedWork, "rate_limit"),
    "arguments that do not fit": (lambda m: [m.add.s(1)], UnsupportedWork, "arguments do not fit"),
    "unknown option": (lambda m: [m.add.s(1, 1).set(compression="zlib")], UnsupportedWork, "compression"),
    "a string": (lambda _: "abc", UnsupportedWork, "str"),
    "a single signature": (lambda m: m.add.s(1, 1), UnsupportedWork, "put it in a list"),
    "a number in the list": (lambda _: [3], UnsupportedWork, 'item "0"'),
}


@pytest.fixture(scope="module")
def app_module() -> ModuleType:
    """The shop, imported as a user's tests import theirs."""
    return importlib.import_module(APP)


@pytest.fixture(scope="module")
def poimen_app(app_module: ModuleType) -> Poimen:
    """Its Poimen."""
    found: Poimen = app_module.poimen
    return found


@pytest.fixture
def shop(poimen: Poimen, app_module: ModuleType) -> ModuleType:
    """The shop, with nothing in its store; no worker serves it."""
    return app_module


def frozen(shop: ModuleType) -> Any:
    """A signature with an id of its own."""
    signature = shop.add.s(1, 1)
    signature.freeze()
    return signature


def body(value: Any = None) -> Any:
    """A task's body."""
    return value


def foreign() -> Any:
    """A task of another Celery app."""
    app = Celery("elsewhere", set_as_current=False)
    return app.task(body, name="foreign.task", shared=False)


def limited(shop: ModuleType) -> Any:
    """A task with a rate limit."""
    return shop.app.task(body, name="limited.task", shared=False, rate_limit="1/s")


def keys(shop: ModuleType) -> set[bytes]:
    """Everything in the namespace."""
    return set(shop.poimen.store.client.redis.scan_iter(f"{shop.poimen.store.keys.root}*"))


@pytest.mark.parametrize("case", CASES)
def test_work_is_checked_before_anything_is_written(shop: ModuleType, case: str) -> None:
    """The error names item, fault and what is allowed; the store is untouched (faults A08, A15, E05, F04, F05)."""
    make, error, text = CASES[case]
    work, before = make(shop), keys(shop)
    with pytest.raises(error, match=text):
        shop.poimen.dispatch(work)
    assert keys(shop) == before


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_id": "a/b"}, InvalidId, "batch id"),
        ({"batch_id": "a\n"}, InvalidId, "batch id"),
        ({"batch_id": ""}, InvalidId, "batch id"),
        ({"workflow": "../x"}, InvalidId, "workflow"),
        ({"stage": "s" * 200}, InvalidId, "stage"),
        ({"actor": "me you"}, InvalidId, "actor"),
        ({"queue": "a b"}, InvalidId, "queue"),
        ({"concurrency": "ten"}, InvalidArgument, "concurrency 'ten'"),
        ({"concurrency": True}, InvalidArgument, "concurrency True"),
        ({"priority": "urgent"}, InvalidArgument, "high, normal, low"),
        ({"on_existing": "maybe"}, InvalidArgument, "continue, raise"),
        ({"metadata": {"x": {1}}}, SerializationError, "metadata"),
        ({"on_success": 3}, UnsupportedWork, "on_success"),
    ],
)
def test_options_are_checked(shop: ModuleType, options: dict[str, Any], error: type[PoimenError], text: str) -> None:
    """An option out of its range is named with its value, and nothing is written."""
    before = keys(shop)
    with pytest.raises(error, match=text):
        shop.poimen.dispatch([shop.add.s(1, 1)], **options)
    assert keys(shop) == before


def test_an_existing_batch_can_be_refused(shop: ModuleType) -> None:
    """`on_existing='raise'` does not join an existing batch."""
    shop.poimen.dispatch([shop.add.s(1, 1)], batch_id="once")
    with pytest.raises(BatchExists, match="once"):
        shop.poimen.dispatch([shop.add.s(1, 1)], batch_id="once", on_existing="raise")


def test_a_bad_item_in_a_later_slice_cancels_the_batch(shop: ModuleType) -> None:
    """What was written before is cancelled, the bad slice is not written, and the error carries the batch's id."""
    work = [shop.add.s(i, 0) for i in range(1000)]
    work[900] = shop.echo.s({1, 2})
    with pytest.raises(SerializationError, match='item "900"') as caught:
        shop.poimen.dispatch(iter(work), batch_id="half")
    assert caught.value.batch_id == "half"
    status = shop.poimen.batch("half").status()
    assert (status.state, status.total, status.cancelled) == (BatchState.CANCELLED, 768, 768)


def test_an_error_of_the_work_itself_aborts(shop: ModuleType) -> None:
    """A generator that raises after some slices aborts the dispatch; the cause is kept."""

    def work() -> Any:
        for number in range(600):
            yield shop.add.s(number, 0)
        raise LookupError("the source is gone")

    with pytest.raises(DispatchAborted, match="the source is gone") as caught:
        shop.poimen.dispatch(work())
    assert isinstance(caught.value.__cause__, LookupError)
    assert shop.poimen.batch(caught.value.batch_id).status().state is BatchState.CANCELLED


def test_an_id_repeated_in_another_slice(shop: ModuleType) -> None:
    """Duplicate ids far apart are found too (fault A08)."""
    work = [Item(shop.add.s(i, 0), id=f"i{i % 1999}") for i in range(2000)]
    with pytest.raises(DuplicateItem, match="i0"):
        shop.poimen.dispatch(work)


def test_no_redis_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Redis the first use says which variable to set; constructing says nothing."""
    for name in ("POIMEN_REDIS_URL", "POIMEN_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    poimen = Poimen(Celery("plain", set_as_current=False, broker="amqp://localhost//"))
    with pytest.raises(SettingsError, match="POIMEN_REDIS_URL"):
        poimen.dispatch([])


def test_an_unreachable_redis_hides_its_password() -> None:
    """The error comes within the connect timeout and names the URL without its password."""
    poimen = Poimen("far", redis_url="redis://user:s3cret@127.0.0.1:1/0", connect_timeout=0.5)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as caught:
        poimen.dispatch([])
    assert "s3cret" not in str(caught.value)


def test_the_settings_of_an_app_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Poimen(app)` may stand before the app's configuration is read."""
    monkeypatch.delenv("POIMEN_NAMESPACE", raising=False)
    app = Celery("late", set_as_current=False)
    poimen = Poimen(app)
    app.conf.update(poimen_namespace="later")
    assert poimen.settings.namespace == "later"
