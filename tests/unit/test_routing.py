from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue, binding

from poimen_tasks import RetryPolicy, policy
from poimen_tasks.dispatch.routing import Router, broker_priority, check_limits
from poimen_tasks.errors import InvalidArgument, InvalidId


def make_app(broker: str = "redis://localhost:1/0", **conf: Any) -> Celery:
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(conf)

    @app.task(name="shop.add", shared=False, soft_time_limit=5, time_limit=6)
    @policy(prefetch=1, retry=RetryPolicy(max_lost=7))
    def add(x: int) -> int:
        return x

    @app.task(name="shop.plain", shared=False)
    def plain(x: int) -> int:
        return x

    app.finalize()
    return app


def route(app: Celery, options: dict[str, Any] | None = None, task: str = "shop.plain", **more: Any) -> Any:
    router = Router(app, **more)
    number = router.number(app.tasks[task], options or {}, (1,), {})
    return router.parts[number]


def test_a_part_holds_route_limits_and_policy() -> None:
    """A partition is the task, its route, its time limits and its policy (promise D2)."""
    part = route(make_app(), task="shop.add")
    assert part.activity == "shop.add"
    assert (part.queue, part.exchange, part.routing_key, part.priority) == ("celery", "", "celery", None)
    assert (part.soft_time_limit, part.time_limit) == (5.0, 6.0)
    assert (part.prefetch, part.max_lost) == (1, 7)
    assert route(make_app())[5:] == (None, None, None, 3, False)


def test_routes_of_the_app_hold() -> None:
    """`task_routes` decides unless the batch or the signature names a queue (promise D2)."""
    app = make_app(task_routes={"shop.*": {"queue": "routed"}})
    assert route(app).queue == "routed"
    assert route(app, queue="batch").queue == "batch"
    assert route(app, {"queue": "own"}, queue="batch").queue == "own"
    assert route(app, {"queue": Queue("kombu")}).queue == "kombu"


def test_a_bare_exchange_leads_to_its_queue() -> None:
    """An exchange without a queue is served by the queue that is bound to it (promise D2)."""
    topic = Exchange("events", type="topic")
    app = make_app(task_queues=[Queue("celery"), Queue("orders", topic, routing_key="order.#")])
    assert route(app, {"exchange": "events", "routing_key": "order.#"})[:3] == ("orders", "events", "order.#")
    assert route(app, {"exchange": "events", "routing_key": "order.new.eu"})[:3] == ("orders", "events", "order.new.eu")
    assert route(app, {"queue": "orders"})[:3] == ("orders", "events", "order.#")
    with pytest.raises(InvalidArgument, match="nowhere"):
        route(app, {"exchange": "nowhere", "routing_key": "x"})


@pytest.mark.parametrize(
    ("bound", "routing_key", "leads"),
    [
        ("report.#", "report.daily", True),
        ("report.#", "report", True),
        ("report.*", "report.daily", True),
        ("report.*", "report.daily.late", False),
        ("#.late", "report.daily.late", True),
        ("*.daily.#", "report.daily", True),
        ("report.daily", "report.dailyx", False),
    ],
)
def test_topics_lead_to_the_queue_that_is_bound(bound: str, routing_key: str, leads: bool) -> None:
    """A routing key leads to a queue as the pattern says by which the queue is bound to a topic exchange."""
    app = make_app(task_queues=[Queue("celery"), Queue("r", Exchange("reports", type="topic"), routing_key=bound)])
    if leads:
        assert route(app, {"exchange": "reports", "routing_key": routing_key})[:3] == ("r", "reports", routing_key)
    else:
        with pytest.raises(InvalidArgument, match="leads to none"):
            route(app, {"exchange": "reports", "routing_key": routing_key})


def test_a_queue_with_several_bindings() -> None:
    """Each binding of a queue leads to it, a fanout exchange whatever the routing key."""
    bindings = [binding(Exchange("a"), routing_key="x"), binding(Exchange("b", type="fanout"))]
    app = make_app(task_queues=[Queue("celery"), Queue("q", Exchange("a"), bindings=bindings)])
    assert route(app, {"exchange": "a", "routing_key": "x"}).queue == "q"
    assert route(app, {"exchange": "b", "routing_key": "any"}).queue == "q"


def test_one_part_for_each_combination() -> None:
    """Partitions are numbered in order of first appearance and shared by equal calls (promise D2)."""
    app = make_app()
    router = Router(app)
    add, plain = app.tasks["shop.add"], app.tasks["shop.plain"]
    numbers = [
        router.number(add, {}, (), {}),
        router.number(plain, {}, (), {}),
        router.number(add, {"queue": "q"}, (), {}),
        router.number(add, {}, (), {}),
        router.number(plain, {"queue": "celery"}, (), {}),
        router.number(add, {"time_limit": 60}, (), {}),
    ]
    assert numbers == [0, 1, 2, 0, 1, 3]
    assert [part.queue for part in router.parts] == ["celery", "celery", "q", "celery"]


def test_a_continued_batch_keeps_its_numbers() -> None:
    """Known partitions keep their numbers when a dispatch is continued (fault A22)."""
    app = make_app()
    known = [route(app, task="shop.add"), route(app)]
    router = Router(app, known=known)
    assert router.number(app.tasks["shop.plain"], {}, (), {}) == 1
    assert router.number(app.tasks["shop.plain"], {"queue": "new"}, (), {}) == 2


def by_argument(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **more: Any) -> dict[str, str]:
    return {"queue": f"q{args[0]}"}


def test_a_router_that_looks_at_arguments_is_asked_for_each() -> None:
    """A routing function sees every call's arguments (promise D2)."""
    app = make_app(task_routes=(by_argument,))
    router = Router(app)
    assert router.by_arguments
    assert [router.number(app.tasks["shop.plain"], {}, (i,), {}) for i in (1, 2, 1)] == [0, 1, 0]
    assert [part.queue for part in router.parts] == ["q1", "q2"]


@pytest.mark.parametrize(
    ("broker", "numbers"),
    [("redis://localhost:1/0", (0, 5, 9)), ("amqp://localhost:1//", (9, 5, 0)), ("memory://", (0, 5, 9))],
)
def test_priority_names_mean_the_same_on_every_broker(broker: str, numbers: tuple[int, ...]) -> None:
    """`high` is served first whichever way the broker counts; users see no numbers (fault E03)."""
    app = make_app(broker, task_default_priority=5)
    assert tuple(broker_priority(app, name) for name in ("high", "normal", "low")) == numbers


def test_priority_of_a_batch_and_of_a_signature() -> None:
    """A signature's priority counts before the batch's, and `normal` gives way to the task's own (fault E03)."""
    app = make_app(task_default_priority=5)
    assert route(app).priority == 5
    assert route(app, priority="high").priority == 0
    assert route(app, {"priority": "low"}, priority="high").priority == 9
    assert route(app, {"priority": 3}).priority == 3
    app.tasks["shop.plain"].priority = 7
    assert route(app).priority == 7


@pytest.mark.parametrize("priority", ["urgent", -1, 256, True, 1.5])
def test_an_unknown_priority_is_refused(priority: Any) -> None:
    """The error says which priorities there are (fault E03)."""
    with pytest.raises(InvalidArgument, match="high, normal, low"):
        broker_priority(make_app(), priority)


@pytest.mark.parametrize(
    ("soft", "hard"), [(0, 1), (-1, None), ("5", None), (True, None), (5, 4), (None, float("inf"))]
)
def test_impossible_limits_are_refused(soft: Any, hard: Any) -> None:
    """Limits are seconds above 0, the soft one not above the hard one (promise D2)."""
    with pytest.raises(InvalidArgument, match="time_limit"):
        check_limits(soft, hard)


def test_a_queue_that_cannot_be_is_refused() -> None:
    """A queue with a bad name, or missing where queues may not be made, is one clear error (fault H11)."""
    with pytest.raises(InvalidId, match="queue"):
        Router(make_app(), queue="a/b")
    with pytest.raises(InvalidId, match="queue"):
        route(make_app(), {"queue": "a\nb"})
    with pytest.raises(InvalidArgument, match="missing"):
        route(make_app(task_create_missing_queues=False), {"queue": "missing"})
