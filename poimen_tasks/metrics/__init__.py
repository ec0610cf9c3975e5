"""What a Prometheus server scrapes: numbers that the store keeps, read when they are asked for.

Nothing calls this room while it works: what is counted, the scripts count (`store/lua/include/counting.lua`). It needs
the package prometheus_client: `pip install 'poimen-tasks[metrics]'`.
"""

from __future__ import annotations

from poimen_tasks.metrics.catalogue import CATALOGUE, Definition
from poimen_tasks.metrics.collector import PoimenCollector
from poimen_tasks.metrics.exposition import Scrape, scrape
from poimen_tasks.metrics.serving import Address, MetricsServer

__all__ = ["CATALOGUE", "Address", "Definition", "MetricsServer", "PoimenCollector", "Scrape", "scrape"]
