"""How a step of a canvas hands over to what the end of its batch publishes: place, route, headers, workflow."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from poimen_tasks.dispatch.hidden import CALLBACK_TASK, pack_canvas
from poimen_tasks.dispatch.signatures import COLLECT_TASK
from poimen_tasks.errors import InvalidId
from poimen_tasks.ids import check_name

if TYPE_CHECKING:
    from poimen_tasks.dispatch.runtime import Runtime

__all__ = ["digest", "hand_over", "inherited", "name_of"]


def hand_over(step: Any, batch: str) -> Any:
    """The callback that publishes what takes this step's place."""
    request = step.request
    route = _route(step.app, request.delivery_info or {})
    taking_over = step.app.tasks[COLLECT_TASK].si(batch).set(**route, **_carried(request))
    # The step's `on_replace` keeps what `replace` has built. It is published where the step came from: that queue is
    # served.
    return step.app.tasks[CALLBACK_TASK].si(pack_canvas(step.replace(taking_over))).set(**route)


def _route(app: Any, info: dict[str, Any]) -> dict[str, Any]:
    """The queue that a message came from, and its priority."""
    exchange, key = info.get("exchange"), info.get("routing_key")
    queue = key
    if exchange:
        queues = app.amqp.queues.values()
        queue = next((one.name for one in queues if one.exchange.name == exchange and one.routing_key == key), None)
    route = {"queue": queue, "priority": info.get("priority")}
    return {name: value for name, value in route.items() if value is not None}


def _carried(request: Any) -> dict[str, Any]:
    """What `replace` leaves behind of a request: parent, headers, stamps, and whether the result is wanted."""
    stamped = list(request.stamped_headers or ())
    carried = {name: (request.stamps or {}).get(name) for name in stamped}
    carried |= {"stamped_headers": stamped or None, "parent_id": request.parent_id, "headers": request.headers}
    return {name: value for name, value in carried.items() if value} | {"ignore_result": request.ignore_result}


def inherited(runtime: Runtime, root: str) -> dict[str, Any]:
    """Workflow and actor: those of the batch that a canvas was started from, else a workflow of this canvas's own."""
    # The message id of an item is <batch>.<position>, that of a callback <batch>@<kind>.<round>.<position>.
    batch = root.rpartition(".")[0].partition("@")[0]
    workflow, actor = runtime.store().reads.field(batch, "workflow", "actor") if batch else (None, None)
    if workflow:
        return {"workflow": workflow.decode(), "actor": (actor or b"unknown").decode()}
    return {"workflow": name_of(root)}


def name_of(message: str) -> str:
    """A message id as the id of a batch or workflow; itself where it may be one."""
    try:
        return check_name(message, "message id")
    except InvalidId:
        return f"each-{digest(message)}"


def digest(text: str) -> str:
    """A short text that stands for a long one in an id."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]
