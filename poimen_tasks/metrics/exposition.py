"""What a collector tells, as text for Prometheus and as rows for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from poimen_tasks.metrics.collector import PoimenCollector, client_module

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["Scrape", "scrape"]


class Scrape(NamedTuple):
    """One look at everything."""

    families: Sequence[Metric]

    def collect(self) -> Sequence[Metric]:
        """As a registry does it."""
        return self.families

    @property
    def up(self) -> bool:
        """Whether the store answered."""
        return any(row["name"] == "poimen_up" and row["value"] == 1 for row in self.rows())

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """In the format that a client accepts, and its content type; by default Prometheus's text format."""
        client: Any = client_module()
        try:
            encode, kind = client.exposition.choose_encoder(accept)
        except Exception:  # noqa: BLE001 - a version that is no number: what it raises differs from release to release
            encode, kind = client.exposition.choose_encoder("")
        return bytes(encode(self)), str(kind)

    def rows(self) -> list[dict[str, Any]]:
        """As plain values, a row a sample; what is no finite number is None."""
        return [
            {
                "name": sample.name,
                "type": family.type,
                "labels": dict(sample.labels),
                "value": sample.value if math.isfinite(sample.value) else None,
            }
            for family in self.families
            for sample in family.samples
        ]


def scrape(collector: PoimenCollector) -> Scrape:
    """Ask a collector once."""
    return Scrape(list(collector.collect()))
