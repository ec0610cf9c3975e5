"""The store as a state machine: producers, lanes, frozen lanes, keepers and operators in any order, on a real server.

A plain Python model runs beside it. After each step everything that must hold at every instant is checked; at the end
of each run all batches are driven to their end, and what they leave behind is looked at.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from dataclasses import dataclass, field

import hypothesis.strategies as st
import msgpack
import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as profile
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from poimen_tasks.errors import InvalidArgument, NotPaused, StaleEpoch
from poimen_tasks.store import Store
from poimen_tasks.store.keys import BATCH_KEYS, TABLE
from poimen_tasks.store.ranges import expand_ranges
from tests.integration import lanes
from tests.integration.lanes import Lane

BATCHES = ("a", "b")
FAR = 3600.0
QUEUES = ("q0", "q1")
SCOPES = ("*", "w:w", "b:a", "b:b", "q:q0", "q:q1", "a:acts.x", "a:acts.y")
PARTS = [lanes.part(QUEUES[0], "acts.x", max_lost=2), lanes.part(QUEUES[1], "acts.y", max_lost=2)]
PERMANENT = {name for name, key in TABLE.items() if key.lifetime == "for ever"} | {
    "batches",
    "expiring",
    "workflow",
    "capacity",
    "workers",
    "audit",
    "pause_index",
}
ENDED = ("item.finished", "item.cancelled", "item.lost", "item.revoked")


@dataclass
class Model:
    """What one batch must look like. `waits`: items that no lane holds and that have no outcome."""

    name: str
    total: int = 0
    limit: int = 0
    sealed: bool = False
    cancelled: bool = False
    version: Counter = field(default_factory=Counter)
    losses: Counter = field(default_factory=Counter)
    waits: set = field(default_factory=set)
    held: dict = field(default_factory=dict)
    done: dict = field(default_factory=dict)
    outcomes: Counter = field(default_factory=Counter)
    ended: Counter = field(default_factory=Counter)
    retried: Counter = field(default_factory=Counter)
    marked: set = field(default_factory=set)
    rounds: int = 0

    @property
    def over(self) -> bool:
        """True when nothing can change any more."""
        return self.sealed and not self.waits and not self.held

    def end(self, position: int, status: str) -> None:
        """An outcome was recorded."""
        self.marked.discard(position)
        self.waits.discard(position)
        self.held.pop(position, None)
        self.done[position] = status
        self.outcomes[position] += 1
        self.ended[status, PARTS[position % 2].activity] += 1

    def come_back(self, position: int) -> None:
        """A lane holds it no more; one that was revoked meanwhile ends here."""
        del self.held[position]
        self.waits.add(position)
        if position in self.marked:
            self.end(position, "cancelled")

    def cancel_waiting(self) -> None:
        """What waits in a cancelled batch is settled at once: these batches are small."""
        for position in sorted(self.waits) if self.cancelled else ():
            self.end(position, "cancelled")


class Runner(Lane):
    """A lane, and what it saw of each item when it claimed it."""

    def __init__(self, store: Store, ticket) -> None:
        super().__init__(store, ticket)
        self.seen: dict[int, int] = {}


class StoreMachine(RuleBasedStateMachine):
    """Rules choose among what is there by an index, so that every example is valid."""

    configuration = None  # set by the test

    @initialize(
        slots=st.integers(0, 4),
        callbacks=st.sets(st.sampled_from(["success", "failure", "complete"])),
        sizes=st.tuples(*[st.integers(0, 6)] * len(BATCHES)),
    )
    def begin_world(self, slots, callbacks, sizes):
        """A namespace of its own, two open batches, most often with items."""
        settings = self.configuration.model_copy(update={"namespace": f"m{secrets.token_hex(6)}"})
        self.store = Store(settings, str(settings.redis_url))
        self.models = {name: Model(name) for name in BATCHES}
        self.tickets, self.used, self.live, self.frozen, self.begun_hidden = [], [], [], [], []
        self.paused: dict[str, int] = {}
        self.declined: set[str] = set()
        self.callbacks = sorted(callbacks)
        lanes.offer(self.store, slots, *QUEUES)
        for name in BATCHES:
            self.publish(
                lanes.open_batch(self.store, name, 0, parts=PARTS, seal=False, callbacks=self.callbacks, retention=60)
            )
        for name, size in zip(BATCHES, sizes, strict=True):
            if size:
                self.append(name, size, delay=None)

    # -- helpers -----------------------------------------------------------------------------------------------

    def publish(self, tickets):
        """Messages that may be delivered later."""
        self.tickets += tickets

    def pick(self, things, index):
        """One of them."""
        return things[index % len(things)]

    def covers(self, batch, part=None):
        """The paused scopes that cover a batch, or a partition of it."""
        scopes = {"*", "w:w", f"b:{batch.partition('@')[0]}"}
        if part is not None:
            scopes |= {f"q:{PARTS[part].queue}", f"a:{PARTS[part].activity}"}
        return scopes & self.paused.keys()

    def slots(self, batch):
        """Slot to (state, generation, queue)."""
        rows = self.store.client.redis.hgetall(self.store.keys.build("slots", batch))
        fields = {int(slot): value.decode().split("|", 3) for slot, value in rows.items()}
        return {slot: (state, int(generation), queue) for slot, (state, generation, _, queue) in fields.items()}

    def looks(self, batch, slot):
        """How often the ticket of a slot was overdue."""
        row = self.store.client.redis.hget(self.store.keys.build("slots", batch), slot)
        return int(row.split(b"|")[2]) if row and row.startswith(b"T") else 0

    def after_step(self, lane, reply):
        """Take over what a step told: tickets, the next claim, the end of the lane."""
        model = self.models[lane.ticket.batch]
        self.publish(reply.tickets)
        model.cancel_waiting()
        if reply.positions:
            live = [slot for slot in self.slots(model.name).values() if slot[0] == "L"]
            assert not model.cancelled, "claimed from a cancelled batch"
            assert not self.covers(model.name, reply.positions[0] % 2), "I4: claimed what is paused"
            assert not model.limit or len(live) <= model.limit, "I1: more live lanes than the limit allows"
            assert {position % 2 for position in reply.positions} == {QUEUES.index(lane.ticket.queue)}
        for position in reply.positions:
            assert position in model.waits, f"claimed item {position}, which does not wait"
            model.waits.discard(position)
            model.held[position] = lane
            model.version[position] += 1
            lane.seen[position] = model.version[position]
        if reply.state == "end":
            assert not lane.holds, "a lane was sent away with items in its hands"
            assert (reply.why == "over") <= model.over
            if lane in self.live:
                self.live.remove(lane)

    # -- producing ---------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(BATCHES), size=st.integers(1, 6), delay=st.sampled_from([None, 0.0, FAR]))
    def append(self, name, size, delay):
        """One chunk more: `size` items, all of them delayed or none."""
        model = self.models[name]
        if model.sealed or model.total:  # chunks are full but for the last, so small batches have one slice
            return
        due = None if delay is None else dict.fromkeys(range(size), self.store.reads.now() + delay)
        self.publish(
            lanes.append(self.store, 0, size, name, all_parts=PARTS, parts=lambda position: position % 2, delayed=due)
        )
        model.total = size
        model.waits = set(range(size))

    @rule(name=st.sampled_from(BATCHES))
    def seal(self, name):
        """The producer is done."""
        self.publish(self.store.scripts.seal_batch(name).tickets)
        self.models[name].sealed = True

    # -- lanes -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.tickets)
    @rule(index=st.integers(0, 99), k=st.integers(1, 4), twice=st.booleans())
    def begin(self, index, k, twice):
        """A message reaches a worker, perhaps twice."""
        ticket = self.tickets.pop(index % len(self.tickets))
        self.used.append(ticket)
        if "@" in ticket.batch:
            self.begin_callback(ticket)
            return
        valid = self.slots(ticket.batch).get(ticket.slot, ("",))[:2] == ("T", ticket.generation)
        lane = Runner(self.store, ticket)
        reply = lane.begin(k)
        assert (reply.why not in ("stale", "over")) == valid
        if reply.state == "go":
            self.live.append(lane)
        self.after_step(lane, reply)
        if twice:
            before = lanes.snapshot(self.store)
            assert lane.repeat().raw == reply.raw
            assert lanes.snapshot(self.store) == before

    def begin_callback(self, ticket):
        """A hidden batch runs at once."""
        lane = Lane(self.store, ticket)
        reply = lane.begin()
        if reply.state == "go":
            assert not self.covers(ticket.batch), "I4: a callback of what is paused began"
            assert reply.positions == [0]
            self.begun_hidden.append(ticket.batch)
            assert lane.finish("free", ok=[0]).why == "over"

    @precondition(lambda self: self.used)
    @rule(index=st.integers(0, 99))
    def deliver_again(self, index):
        """A message that was used is delivered once more: nothing happens."""
        ticket = self.pick(self.used, index)
        before = lanes.snapshot(self.store)
        assert Lane(self.store, ticket).begin().why in ("stale", "over")
        assert lanes.snapshot(self.store) == before

    @precondition(lambda self: self.live)
    @rule(
        index=st.integers(0, 99),
        k=st.integers(1, 4),
        ends=st.lists(st.sampled_from(["ok", "failed", "skipped", "retry", "late"]), max_size=4),
        then=st.sampled_from(["claim", "stay", "yield", "free", "decline"]),
        twice=st.booleans(),
    )
    def work(self, index, k, ends, then, twice):
        """A lane reports some of its items, gives the others back (or keeps them), and claims, stays or leaves."""
        lane = self.pick(self.live, index)
        model = self.models[lane.ticket.batch]
        told = {"ok": [], "failed": [], "skipped": [], "retry": {}, "give": []}
        held = list(lane.holds)
        for position, end in zip(held, ends, strict=False):
            if end in ("retry", "late"):
                told["retry"][position] = 0.0 if end == "retry" else FAR
            else:
                told[end].append(position)
        rest = held[len(ends) :]
        if then != "stay":
            told["give"] = rest
        reply = lane.claim(k, **told) if then == "claim" else lane.finish(then, **told)
        assert reply.state != "late"
        if then == "decline":
            self.declined.add(model.name)
        for status in ("ok", "failed", "skipped"):
            for position in told[status]:
                model.end(position, status)
        for position in (*told["retry"], *told["give"]):
            model.come_back(position)
        model.retried.update(told["retry"].keys())
        self.after_step(lane, reply)
        if twice:
            before = lanes.snapshot(self.store)
            assert lane.repeat().raw == reply.raw
            assert lanes.snapshot(self.store) == before

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 99), why=st.sampled_from(["lease", "lost", "timeout"]))
    def reap(self, index, why):
        """A lane is lost; its process may only be frozen."""
        lane = self.live.pop(index % len(self.live))
        model = self.models[lane.ticket.batch]
        held = list(lane.holds)
        self.publish(lanes.reap(self.store, lane, why))
        for position in held:
            model.come_back(position)
        if len(held) == 1 and held[0] in model.waits:
            (position,) = held
            model.losses[position] += 1
            if why == "timeout" or model.losses[position] >= 2:
                model.end(position, "failed")
        model.cancel_waiting()
        self.frozen.append((lane, held))

    @precondition(lambda self: self.frozen)
    @rule(index=st.integers(0, 99), status=st.sampled_from(["ok", "failed"]))
    def wake(self, index, status):
        """A frozen lane wakes up and reports what it had done: it counts where nobody else was at work since."""
        lane, held = self.frozen.pop(index % len(self.frozen))
        model = self.models[lane.ticket.batch]
        counts = [
            position for position in held if position in model.waits and model.version[position] == lane.seen[position]
        ]
        for position in counts:
            model.end(position, status)
        lane.holds.clear()
        reply = lane.settle(**{status: held})
        assert reply.state == "end"
        self.publish(reply.tickets)
        model.cancel_waiting()

    # -- operators and keepers ---------------------------------------------------------------------------------

    @rule(name=st.sampled_from(BATCHES), dice=st.integers(0, 3))
    def cancel(self, name, dice):
        """Somebody cancels; not too often, or little else would happen."""
        model = self.models[name]
        if dice:
            return
        was_over = model.over
        reply = self.store.scripts.cancel_batch(name, reason="stop", actor="me", terminate=False)
        self.publish(lanes.tickets_of(reply))
        if not was_over:
            model.cancelled = model.sealed = True
            model.cancel_waiting()
        assert bool(reply[b"over"]) == model.over

    @rule(
        name=st.sampled_from(BATCHES),
        positions=st.sets(st.integers(0, 7), min_size=1, max_size=3),
        signal=st.sampled_from([0, 9]),
    )
    def revoke(self, name, positions, signal):
        """Somebody revokes single items: waiting, running, over or unknown ones."""
        model = self.models[name]
        waited = sorted(positions & model.waits)
        held = positions & model.held.keys()
        reply = self.store.scripts.cancel_items(name, list(positions), reason="no", actor="me", signal=signal)
        self.publish(reply.tickets)
        assert list(expand_ranges(reply.settled)) == waited
        assert set(expand_ranges(reply.running)) <= held
        for position in waited:
            model.end(position, "cancelled")
        model.marked |= held
        assert reply.over == model.over
        for lane in self.live:
            if lane.ticket.batch == name and signal and len(lane.holds) == 1 and positions & lane.holds.keys():
                (answer,) = self.store.scripts.renew_leases([lane.ticket[:3]], lease=60.0)
                assert answer == f"signal:9:{next(iter(lane.holds))}"

    @rule(name=st.sampled_from(BATCHES), limit=st.integers(0, 3))
    def set_concurrency(self, name, limit):
        """Somebody changes the limit."""
        model = self.models[name]
        if not model.over:
            model.limit = limit
        self.publish(self.store.scripts.set_concurrency(name, limit, actor="me"))

    @rule(name=st.sampled_from(BATCHES), most=st.integers(1, 6))
    def retry_failed(self, name, most):
        """Somebody retries failed items."""
        model = self.models[name]
        failed = [position for position, status in model.done.items() if status == "failed"][:most]
        index = self.store.reads.index(name)
        items = [(p, p % 2, int.from_bytes(index[p * 4 : p * 4 + 4], "big")) for p in failed]
        round_ = lanes.field_of(self.store, "round", name)
        pending = lanes.field_of(self.store, "callbacks", name)
        try:
            retried, tickets = self.store.scripts.retry_failed(name, items, round_=round_ + 1, actor="me")
        except InvalidArgument:
            assert model.cancelled or pending
            return
        assert not model.cancelled
        assert not pending
        assert retried == len(failed)
        self.publish(tickets)
        for position in failed:
            del model.done[position]
            model.waits.add(position)
            model.version[position] += 1
            model.losses[position] = 0

    @precondition(lambda self: len(self.paused) < 2)
    @rule(
        scope=st.sampled_from(SCOPES),
        grace=st.sampled_from([None, 0.0, FAR]),
        terminate=st.booleans(),
        twice=st.booleans(),
    )
    def pause(self, scope, grace, terminate, twice):
        """Somebody pauses; what runs there, and nothing else, is in the receipt."""
        options = {
            "reason": "",
            "actor": "me",
            "grace": grace,
            "terminate": terminate,
            "request_id": secrets.token_hex(4),
        }
        receipt = self.store.pauses.pause_scope(scope, **options)
        assert receipt.epoch > max(self.paused.values(), default=0)
        self.paused[scope] = receipt.epoch
        told = {(lane.batch, position) for lane in receipt.running for position in expand_ranges(lane.ranges)}
        assert told == {
            (name, position)
            for name, model in self.models.items()
            for position, lane in model.held.items()
            if scope in self.covers(name, position % 2)
        }
        if twice:
            before = lanes.snapshot(self.store)
            again = self.store.pauses.pause_scope(scope, **options)
            assert again == receipt._replace(again=True)
            assert lanes.snapshot(self.store) == before

    @rule(scope=st.sampled_from(SCOPES))
    def resume_in_vain(self, scope):
        """Somebody resumes what is not paused, or was paused anew since."""
        epoch = self.paused.get(scope)
        before = lanes.snapshot(self.store)
        with pytest.raises(StaleEpoch if epoch else NotPaused):
            self.store.pauses.resume_scope(scope, reason="", actor="me", epoch=epoch and epoch - 1)
        assert lanes.snapshot(self.store) == before

    @precondition(lambda self: self.paused)
    @rule(index=st.integers(0, 99), rate=st.sampled_from([None, 1e9]))
    def resume(self, index, rate):
        """Somebody resumes; with this rate nothing has to wait."""
        scope = self.pick(sorted(self.paused), index)
        reply = self.store.pauses.resume_scope(scope, reason="", actor="me", epoch=self.paused.pop(scope), rate=rate)
        self.publish(reply.tickets)
        assert not reply.left

    @rule(name=st.sampled_from(BATCHES))
    def promote(self, name):
        """The keeper looks after a batch."""
        self.declined.discard(name)
        self.publish(self.store.scripts.promote_batch(name))

    @rule(name=st.sampled_from(BATCHES), slot=st.integers(0, 4), reissue=st.booleans())
    def reissue(self, name, slot, reissue):
        """A ticket's message seems lost."""
        state, generation, queue = self.slots(name).get(slot, ("", 0, QUEUES[0]))
        held = self.covers(name, QUEUES.index(queue))
        again = reissue or self.looks(name, slot) >= 3
        tickets = self.store.scripts.reissue_ticket(name, slot, reissue=reissue)
        # One whose queue is paused is taken back, and another queue may get its place. One that was left where it is
        # three times, because others wait too, goes out once more as it is.
        assert held or bool(tickets) == (state == "T" and again)
        assert held or reissue or {ticket.generation for ticket in tickets} <= {generation}
        self.publish(tickets)

    @rule(name=st.sampled_from(BATCHES))
    def time_passes(self, name):
        """All that waits for its time is due. Real waiting would make runs differ."""
        redis, delayed = self.store.client.redis, self.store.keys.build("delayed", name)
        if members := redis.zrange(delayed, 0, -1):
            redis.zadd(delayed, dict.fromkeys(members, 1.0))
            redis.zadd(self.store.keys.build("due"), {name: 1.0})

    @rule(slots=st.integers(0, 4))
    def tick(self, slots):
        """The fleet changes."""
        lanes.offer(self.store, slots, *QUEUES)

    # -- at every instant --------------------------------------------------------------------------------------

    @invariant()
    def items_are_where_the_model_has_them(self):
        """I3: every item is counted once, where it is."""
        for name, model in self.models.items():
            reply = self.store.scripts.check_batch(name)
            assert reply[b"good"], reply
            counted = reply[b"counted"]
            assert counted[b"pending"] + counted[b"delayed"] == len(model.waits)
            assert counted[b"running"] == len(model.held)
            assert counted[b"total"] == model.total
            status = self.store.reads.status(name)
            found = {kind: getattr(status, kind) for kind in ("failed", "cancelled", "skipped")} | {
                "ok": status.succeeded
            }
            assert {kind: count for kind, count in found.items() if count} == dict(Counter(model.done.values()))
            assert status.is_over == model.over

    @invariant()
    def marks_are_those_of_running_items(self):
        """A mark stands for an item that was revoked while a lane held it, and for nothing else."""
        for name, model in self.models.items():
            (stored,) = self.store.reads.field(name, "marks")
            assert {int(position) for position in msgpack.unpackb(stored or b"\x80", raw=True)} == model.marked
            fields = self.store.client.redis.hkeys(self.store.keys.record(name))
            assert len([text for text in fields if text.startswith(b"kill:")]) <= len(model.marked)

    @invariant()
    def outcomes_are_recorded_once(self):
        """I2, I5: the stream holds what the model ended, and the audit log tells the same."""
        for name, model in self.models.items():
            recorded = Counter(p for columns in lanes.outcomes(self.store, name) for p in expand_ranges(columns.ranges))
            assert recorded == model.outcomes
            told = Counter(p for entry in lanes.audit(self.store, *ENDED, batch=name) for p in entry.positions)
            assert told == model.outcomes
            retried = Counter(
                row[0] for entry in lanes.audit(self.store, "item.retried", batch=name) for row in entry.header["y"]
            )
            assert retried == model.retried
            retried_failed = sum(len(entry.positions) for entry in lanes.audit(self.store, "batch.retried", batch=name))
            assert sum(model.outcomes.values()) == len(model.done) + retried_failed

    @invariant()
    def totals_tell_what_ended(self):
        """The counts that metrics tell are those of the model, and the open batches are listed."""
        totals, retried = lanes.totals(self.store), Counter()
        told = {names[1:]: count for names, count in totals.items() if names[0] == "i"}
        assert told == sum((model.ended for model in self.models.values()), Counter())
        for model in self.models.values():
            for position, count in model.retried.items():
                retried["r", PARTS[position % 2].activity] += count
        assert {names: count for names, count in totals.items() if names[0] == "r"} == retried
        lost = [entry for entry in lanes.audit(self.store, "lane.lost") if "@" not in entry.header["b"]]
        assert totals.get(("l",), 0) == len(lost)
        listed = self.store.client.redis.zrangebyscore(self.store.keys.build("open"), 0, "+inf")
        assert {name.decode() for name in listed} == {name for name, model in self.models.items() if not model.over}

    @invariant()
    def slots_and_counters_agree(self):
        """Slots, leases, tickets and the counts by queue tell the same of every batch, hidden ones too."""
        redis, keys = self.store.client.redis, self.store.keys
        counts, leases, tickets = Counter(), set(), set()
        for key in redis.scan_iter(match=keys.build("slots", "*")):
            batch = key.decode().removeprefix(keys.record("")).removesuffix("/slots")
            own = Counter()
            for slot, (state, generation, queue) in self.slots(batch).items():
                own[f"{state.lower()}:{queue}"] += 1
                if state == "L":
                    leases.add((batch, slot, generation))
                else:
                    tickets.add(f"{batch}\t{slot}".encode())
            counts += own
            stored = redis.hgetall(keys.record(batch))
            assert +own == Counter(
                {n.decode()[1:]: int(v) for n, v in stored.items() if n.startswith((b"qt:", b"ql:")) and int(v)}
            )
        assert +counts == lanes.counters(self.store)
        assert {lease[:3] for lease in self.store.reads.leases()} == leases
        assert set(redis.zrange(keys.build("tickets"), 0, -1)) == tickets
        alive = {lane.ticket[:3] for lane in self.live}
        assert {lease for lease in leases if "@" not in lease[0]} == alive

    @invariant()
    def nobody_is_forgotten(self):
        """Claimable items have a slot on their queue, or the limit is reached; a cancelled batch is settled."""
        for name, model in self.models.items():
            slots = self.slots(name)
            if model.cancelled:
                assert not model.waits
                continue
            offered = [int(count or 0) for count in self.store.reads.field(name, "c:0", "c:1")]
            for queue, count in zip(QUEUES, offered, strict=True):
                served = any(slot[2] == queue for slot in slots.values())
                part = QUEUES.index(queue)
                held = any(self.is_held(scope, name) for scope in self.covers(name, part))
                assert (
                    not count or served or held or (model.limit and len(slots) >= model.limit) or self.is_hungry(name)
                ), (name, queue)

    def is_hungry(self, batch):
        """Whether a lane declined, and the keeper will look at the batch at its next tick."""
        hungry = self.store.client.redis.zscore(self.store.keys.build("hungry"), batch) is not None
        return batch in self.declined and hungry

    def is_held(self, scope, batch):
        """Whether a resume of the scope will look at the batch."""
        return self.store.client.redis.sismember(self.store.keys.build("held", scope), f"b\t{batch}")

    # -- the end -----------------------------------------------------------------------------------------------

    def teardown(self):
        """Everything is driven to its end."""
        if not hasattr(self, "store"):
            return
        try:
            self.finish_everything()
            self.look_at_what_is_left()
        finally:
            self.sweep()

    def finish_everything(self):
        """Lanes finish what they hold, frozen ones report, and tickets run until all batches are over."""
        while self.paused:
            self.resume(0, None)
        for name in BATCHES:
            self.seal(name)
        while self.frozen:
            self.wake(0, "ok")
        deadline = time.monotonic() + 20
        while not all(model.over for model in self.models.values()) or self.tickets:
            assert time.monotonic() < deadline, f"not over: {self.models}"
            while self.live:
                self.work(0, 4, ["ok"] * len(self.live[0].holds), "claim", twice=False)
            while self.tickets:
                self.begin(0, 4, twice=False)
            for name in BATCHES:
                self.time_passes(name)
                self.promote(name)

    def look_at_what_is_left(self):
        """Marks, callbacks, lifetimes, counters."""
        redis, keys = self.store.client.redis, self.store.keys
        self.items_are_where_the_model_has_them()
        self.outcomes_are_recorded_once()
        for name, model in self.models.items():
            assert sorted(model.done) == list(range(model.total)), "I2: every item has its outcome"
            assert self.store.reads.index(name).count(b"\0\0\0\0") == 0 or not model.total
            ordinals = lanes.ends(self.store, name)
            assert ordinals[-1] == lanes.field_of(self.store, "ordinal", name), "the last entry is marked"
            ended = lanes.audit(self.store, "batch.completed", "batch.failed", "batch.cancelled", batch=name)
            assert len(ended) == len(ordinals)
            good = set(model.done.values()) <= {"ok"} and not model.cancelled
            kinds = {"complete", "success" if good else "failure"} & set(self.callbacks)
            opened = [
                (entry.header["kind"], entry.header["round"])
                for entry in lanes.audit(self.store, "callback.opened", batch=name)
            ]
            assert len(set(opened)) == len(opened), "a callback is opened once a round"
            assert {kind for kind, round_ in opened if round_ == lanes.field_of(self.store, "round", name)} == kinds
            assert len(opened) == len(lanes.audit(self.store, "callback.finished", batch=name))
            for kind, round_ in opened:
                assert lanes.statuses_of(self.store, f"{name}@{kind}.{round_}") == {0: ["ok"]}
            assert all(redis.ttl(keys.build(key, name)) != -1 for key in BATCH_KEYS)
        assert lanes.counters(self.store) == {}
        assert (
            redis.exists(*(keys.build(name) for name in ("leases", "tickets", "due", "hungry", "pauses", "releasing")))
            == 0
        )
        assert not any(redis.exists(keys.build("held", scope)) for scope in SCOPES)
        permanent = {keys.build(name, *["w"] * len(TABLE[name].holes)).encode() for name in PERMANENT}
        stay = {key for key in redis.scan_iter(match=f"{keys.root}*") if redis.ttl(key) == -1}
        assert stay <= permanent, stay - permanent

    def sweep(self):
        """Remove the namespace."""
        found = list(self.store.client.redis.scan_iter(match=f"{self.store.keys.root}*"))
        if found:
            self.store.client.redis.delete(*found)
        self.store.client.close()


class PausingMachine(StoreMachine):
    """The same with less of the rest, so that pauses meet lanes, frozen lanes, retries and callbacks more often."""

    cancel = revoke = retry_failed = set_concurrency = reissue = deliver_again = resume_in_vain = None


@pytest.mark.parametrize("kind", [StoreMachine, PausingMachine])
def test_store_machine(settings, redis_client, kind):
    """In any order of events items end once, limits hold, and nothing is left behind (invariants I1 to I5)."""

    class Machine(kind):
        configuration = settings

    small = profile(
        max_examples=20,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # shrinking replays for minutes; the steps of a failure are printed anyway
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(Machine, settings=small)
