"""The collector: reads the store when it is asked, and tells what it found as metric families."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from poimen_tasks._version import __version__
from poimen_tasks.errors import MetricsUnavailable, PoimenError, StoreUnavailable
from poimen_tasks.metrics.catalogue import CATALOGUE
from poimen_tasks.metrics.filling import Samples, of_audit, of_batches, of_cache, of_facts, of_fleet
from poimen_tasks.store.metric_reads import MetricReads

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from poimen_tasks.store import Store

__all__ = ["PoimenCollector", "client_module"]

log = logging.getLogger(__name__)

Told = list[tuple[str, tuple[str, ...], float]]

_LEVELS = {"ok": 0, "warning": 1, "error": 2}


class Found(Protocol):
    """A finding of `Poimen.health()`, as far as it is told here."""

    @property
    def level(self) -> str: ...
    @property
    def check(self) -> str: ...


class Observed(Protocol):
    """What is told of: a `Poimen`."""

    @property
    def store(self) -> Store: ...
    def health(self) -> Sequence[Found]: ...


def client_module() -> ModuleType:
    """The package prometheus_client, which only those need who tell metrics.

    Raises:
        MetricsUnavailable: it is not there.
    """
    try:
        import prometheus_client.core
    except ImportError as error:
        raise MetricsUnavailable(
            "metrics need the package prometheus_client: pip install 'poimen-tasks[metrics]'"
        ) from error
    return prometheus_client


class PoimenCollector:
    """Tells a Poimen's state to a registry of prometheus_client: `REGISTRY.register(PoimenCollector(poimen))`.

    A scrape makes the same number of round trips whatever the store holds, and changes nothing. It raises nothing of
    ours: when the store does not answer, `poimen_up` is 0. One collector a namespace is enough, in any process; several
    tell the same.

    Args:
        poimen: whose state is told.

    Raises:
        MetricsUnavailable: the package prometheus_client is not installed.
    """

    def __init__(self, poimen: Observed) -> None:
        client_module()
        self._poimen = poimen
        self._lock = threading.Lock()
        self._looking: Future[Told] | None = None

    def describe(self) -> Iterator[Metric]:
        """The families without samples: a registry asks so for their names, and the store is not."""
        return families([])

    def collect(self) -> Iterator[Metric]:
        """The families with what the store tells now.

        Scrapes that come while another one reads are told what that finds: they add up to no more load, and where the
        store hangs none waits for the timeouts of those before it.
        """
        with self._lock:
            look = self._looking
            if comes_first := look is None or look.done():
                look = self._looking = Future()
        if comes_first:
            try:
                look.set_result(self._look())
            except BaseException as error:  # noqa: BLE001 - it is raised below, to all who wait
                look.set_exception(error)
        return families(look.result())

    def _look(self) -> Told:
        began = time.perf_counter()
        told = Told()
        try:
            told += self._read()
            told.append(("poimen_up", (), 1))
        except StoreUnavailable:
            # Nothing more is asked of it: the scrape has an end of its own.
            return [*_ALWAYS, ("poimen_up", (), 0), ("poimen_health", ("server",), _LEVELS["error"])]
        except PoimenError:
            told = [("poimen_up", (), 0)]
        except Exception as error:  # noqa: BLE001 - what somebody wrote over a number shows itself in many ways
            log.warning("what the store holds cannot be told: %s: %s", type(error).__name__, error)
            told = [("poimen_up", (), 0)]
        told += _health(self._poimen.health())
        return [*_ALWAYS, *told, ("poimen_scrape_seconds", (), time.perf_counter() - began)]

    def _read(self) -> Samples:
        store = self._poimen.store
        reads, began = MetricReads(store.client), time.perf_counter()
        reads.ping()
        yield "poimen_store_round_trip_seconds", (), time.perf_counter() - began
        facts = reads.facts()
        yield from of_facts(facts)
        yield from of_fleet(facts, store.reads.workers())
        yield from of_batches(reads.statuses(facts.batches))
        yield from of_cache(reads.cache_counts(facts.activities), store.settings)
        yield from of_audit(store.audit.describe_audit())


_ALWAYS = (("poimen_build_info", (__version__,), 1.0),)


def _health(findings: Sequence[Found]) -> Samples:
    """The worst finding of each check that was made."""
    # Of memory only what is wrong is found; the layout is looked at where the server answers.
    worst = {"memory": 0} if any(found.check == "layout" for found in findings) else dict[str, int]()
    for found in findings:
        worst[found.check] = max(worst.get(found.check, 0), _LEVELS[str(found.level)])
    for check, level in worst.items():
        yield "poimen_health", (check,), level


def families(samples: Samples) -> Iterator[Metric]:
    """Samples as families, in the order of the catalogue; without samples every family, empty."""
    core: Any = client_module()
    rows = dict[str, list[tuple[tuple[str, ...], float]]]()
    for name, labels, value in samples:
        rows.setdefault(name, []).append((labels, value))
    made = list[Any]()
    for definition in CATALOGUE:
        found = rows.get(definition.name, [])
        if rows and not found:
            continue
        if definition.kind == "counter":
            family = core.core.CounterMetricFamily(definition.name, definition.help, labels=definition.labels)
        elif definition.kind == "info":
            family = core.core.InfoMetricFamily(definition.name.removesuffix("_info"), definition.help)
        else:
            family = core.core.GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
        for labels, value in found:
            if definition.kind == "info":
                family.add_metric([], dict(zip(definition.labels, labels, strict=True)))
            else:
                family.add_metric(labels, value)
        made.append(family)
    return iter(made)
