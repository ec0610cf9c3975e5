"""The shop, in a worker whose parent hears late of the lanes that its children begin, as on a busy machine."""

from __future__ import annotations

import os
import time
from typing import Any

from poimen_tasks.worker.lane_request import LaneRequest
from tests.acceptance.shop import app, poimen

__all__ = ["app", "poimen"]

_accepted = LaneRequest.on_accepted


def _late(self: LaneRequest, *args: Any) -> None:
    time.sleep(float(os.environ["SHOP_HEARS_AFTER"]))
    _accepted(self, *args)


LaneRequest.on_accepted = _late  # type: ignore[method-assign]
