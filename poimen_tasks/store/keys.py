"""Every Redis key of the project, in one place: its form, type, owner and lifetime.

All keys share one hash slot: the namespace stands in braces.
Behind a batch's id, and a tracker's name, stands a slash, which neither contains, so that none can spell another's key.
The Lua scripts get their key builders from this table too (`lua_builders`), so a key is spelled once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["LAYOUT", "TABLE", "Key", "Keys", "lua_builders", "lua_probes"]

#: The number of the stored layout. A script refuses to work on data of another number.
LAYOUT = 1


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of key: `form` is appended to the namespace; its holes are named."""

    form: str
    type: str
    owner: str
    lifetime: str

    @property
    def holes(self) -> tuple[str, ...]:
        """The names of the holes in the form, in order."""
        return tuple(part.split("}")[0] for part in self.form.split("{")[1:])


_RETENTION = "retention, counted from the end of the batch and its callbacks"
_AFTER_RESUME = "a retention after the resume"

TABLE: dict[str, Key] = {
    "layout": Key("layout", "string", "every script", "for ever"),
    "owner": Key("o:{owner}", "string", "once.lua: last sequence and reply of one caller", "600 s after its last call"),
    "recorder": Key("o:{owner}/r", "string", "record_one.lua: how much one caller recorded", "an hour, renewed"),
    "batches": Key("batches", "zset", "all batches by creation time, hidden ones excepted", "until they expire"),
    "open": Key(
        "open", "zset", "batches that are not over by creation time, hidden ones by its negative", "until over"
    ),
    "totals": Key("totals", "hash", "what ended, by kind, status and activity: for metrics", "for ever"),
    "expiring": Key("expiring", "zset", "batch and workflow by the time the batch's keys expire", "until then"),
    "workflow": Key("w:{workflow}", "zset", "batches of a workflow by creation time", _RETENTION),
    "record": Key("b:{batch}", "hash", "a batch's counters, limit, labels, state", _RETENTION),
    "items": Key("b:{batch}/items", "hash", "chunk number to chunk blob", _RETENTION),
    "big": Key("b:{batch}/big", "hash", "position to a call that is too large for its chunk", _RETENTION),
    "ids": Key("b:{batch}/ids", "hash", "custom item id to position", _RETENTION),
    "names": Key("b:{batch}/names", "hash", "chunk number to the custom ids of its items", _RETENTION),
    "labels": Key(
        "b:{batch}/labels", "hash", "chunk number to the task ids of its items, where any has one", _RETENTION
    ),
    "fresh": Key("b:{batch}/f/{part}", "list", "never claimed ranges of a partition", "until claimed"),
    "back": Key("b:{batch}/k/{part}", "list", "positions that came back, of a partition", "until claimed"),
    "running": Key("b:{batch}/running", "hash", "lane token to the ranges it holds", "until finished"),
    "delayed": Key("b:{batch}/delayed", "zset", "position:partition by due time", "until due"),
    "attempts": Key("b:{batch}/attempts", "hash", "position to its attempt record, for what came back", _RETENTION),
    "slots": Key("b:{batch}/slots", "hash", "slot to its ticket or lane; absent means idle", "until the batch is over"),
    "outcomes": Key("b:{batch}/outcomes", "stream", "one columnar blob a finish, id is its ordinal", _RETENTION),
    "index": Key("b:{batch}/index", "string", "4 bytes a position: the ordinal of its outcome", _RETENTION),
    "leases": Key("leases", "zset", "live lanes by the end of their lease", "until released or reaped"),
    "tickets": Key("tickets", "zset", "tickets out by the time they are overdue", "until begun"),
    "due": Key("due", "zset", "batches by their earliest delayed item", "until due"),
    "hungry": Key("hungry", "zset", "batches that want more tickets than the fleet had room for", "until served"),
    "queues": Key("queues", "hash", "t:queue tickets out, l:queue live lanes, over all batches", "for ever"),
    "capacity": Key("capacity", "hash", "queue to slots offered by live workers", "rewritten by each tick"),
    "workers": Key("workers", "hash", "worker to what it offers and when it was last seen", "5 s after its last tick"),
    "clock": Key("clock", "hash", "last tick, who leads, until when reaping is held", "for ever"),
    "pauses": Key("pauses", "hash", "paused scope to `epoch|stop_at or -|1: terminate`", "until resumed"),
    "pause_state": Key("p:s:{scope}", "hash", "who paused and resumed a scope, when and why", _AFTER_RESUME),
    "pause_index": Key("p:all", "zset", "scopes that have a state, by when it may be forgotten", "with the states"),
    "pause_meta": Key("p:meta", "hash", "the last pause epoch, totals", "for ever"),
    "pause_signals": Key("p:e:{scope}", "stream", "one entry a pause or resume of a scope", _AFTER_RESUME),
    "held": Key("p:h:{scope}", "set", "what a scope holds back: b, tab, batch; c, tab, message id", "until released"),
    "releasing": Key("p:r", "zset", "resumed scopes that have held members, by when to go on", "until released"),
    "keeping": Key("p:k", "zset", "paused scopes with batches that would expire, by when to go on", "until all stay"),
    "pause_due": Key("p:due", "zset", "paused scopes by the time the pause expires", "until resumed"),
    "ramps": Key("p:ramp", "hash", "resumed scope to `rate|since|level|at`", "a minute after the last such resume"),
    "paused_calls": Key("p:c", "hash", "message id to a plain call that is parked by a pause", "until it begins again"),
    "paused_due": Key("p:cdue", "zset", "released parked calls by when they are published again", "until they begin"),
    "paused_tries": Key(
        "p:ctries", "hash", "released parked call to how often it was due, tab, queue", "until it begins"
    ),
    "paused_keep": Key("p:ckeep", "zset", "parked calls of groups by when to refresh the group's results", "with them"),
    "paused_revoked": Key("p:crev", "set", "parked calls that were revoked meanwhile", "until they come back"),
    "resumed_calls": Key("p:cz", "zset", "parked calls that began again, by when that is forgotten", "a day each"),
    "running_calls": Key(
        "p:rc", "hash", "message id, worker and process to a plain call that runs", "its lease, renewed"
    ),
    "cache_entry": Key("c:e:{key}", "string", "one cached result: header, labels, value", "until evicted or invalid"),
    "cache_lru": Key("c:lru", "zset", "cached results, the least recently used first", "with its entries"),
    "cache_expiry": Key("c:exp", "zset", "cached results by the time they expire", "with its entries"),
    "cache_index": Key("c:i:{scope}", "set", "cached results of an activity, task, model or tag", "with its entries"),
    "cache_meta": Key("c:meta", "hash", "the cache's clock, bytes, number of the last change", "for ever"),
    "cache_stats": Key("c:s:{activity}", "hash", "counters of one activity's cached results", "for ever"),
    "cache_activities": Key("c:acts", "set", "activities that have counters", "for ever"),
    "cache_stamps": Key("c:stamps", "hash", "scope to the clock of its last invalidation", "until all is swept"),
    "cache_sweeps": Key("c:sweeps", "zset", "what is invalid but not yet removed, by clock", "until swept"),
    "cache_old": Key("c:o:{number}", "set", "cached results to look through", "until swept"),
    "flight": Key("c:f:{key}", "hash", "who computes a result: owner, clock, failures", "until settled"),
    "flight_value": Key("c:v:{key}", "string", "a result on its way to those that wait for it", "until settled"),
    "flight_due": Key("c:due", "zset", "computations by the time they must be looked at", "until settled"),
    "flights": Key("c:flights", "zset", "computations by the cache's clock at their beginning", "until settled"),
    "followers": Key("c:w:{key}", "list", "items parked until the result is there", "until settled"),
    "waiting_calls": Key("c:p", "hash", "message id to a plain call that waits for a result", "until it begins again"),
    "waiting_due": Key("c:pdue", "zset", "released plain calls by when they are published again", "until they begin"),
    "waiting_tries": Key("c:ptries", "hash", "released plain call to how often it was published", "until it begins"),
    "checkpoints": Key(
        "b:{batch}/checkpoints", "hash", "position to a running item's saved state", "until its outcome"
    ),
    "parked": Key("b:{batch}/parked", "hash", "position to the cache key it waits for", "until the batch is over"),
    "digests": Key("b:{batch}/digests", "hash", "chunk number to 32 bytes an item: its cache key", _RETENTION),
    "restored": Key("s:r:{snapshot}", "hash", "a snapshot that was restored here, or is being", "a year; a day before"),
    "restoring": Key("s:ing", "zset", "workflows that are being restored, by when that is given up", "until restored"),
    "trackers": Key("trackers", "zset", "names of trackers by when they began", "until cleared"),
    "tracker": Key("t:{tracker}", "hash", "task id to its tracked state, msgpack", "until removed"),
    "tracker_order": Key("t:{tracker}/order", "zset", "task ids by the order of their first update", "until removed"),
    "tracker_states": Key("t:{tracker}/states", "zset", "task ids by status, then by order", "until removed"),
    "tracker_meta": Key("t:{tracker}/meta", "hash", "a tracker's last numbers and times", "until cleared"),
    "drains": Key("drains", "hash", "worker that is asked to leave to who asked, when and why", "until it has left"),
    "audit": Key("audit", "stream", "one entry a state change", "until sealed, or the unsealed limit"),
    "audit_meta": Key("audit:meta", "hash", "epoch, sealer, count of dropped entries", "for ever"),
}

#: Keys of one batch; all of them get the retention together.
BATCH_KEYS = (
    "record",
    "items",
    "big",
    "ids",
    "names",
    "labels",
    "running",
    "delayed",
    "attempts",
    "slots",
    "outcomes",
    "index",
    "digests",
    "parked",
    "checkpoints",
)


class Keys:
    """Builds the keys of one namespace: `keys.record(batch)`, `keys.audit()`."""

    __slots__ = ("root",)

    def __init__(self, namespace: str) -> None:
        self.root = "{" + namespace + "}:"

    def build(self, name: str, *values: str | int) -> str:
        """The key called `name` in the table, its holes filled in order."""
        key = TABLE[name]
        return self.root + key.form.format(**dict(zip(key.holes, values, strict=True)))

    def record(self, batch: str) -> str:
        """The record of a batch."""
        return self.build("record", batch)


def _lua_expression(key: Key) -> str:
    pieces = ["root"]
    rest = key.form
    for hole in key.holes:
        before, rest = rest.split("{" + hole + "}", 1)
        pieces += [f"'{before}'", hole]
    if rest:
        pieces.append(f"'{rest}'")
    return " .. ".join(pieces)


def lua_builders(source: str) -> str:
    """The same table as Lua source: `K.name` for a fixed key, `K.name(hole)` for one with holes.

    Only of those that a script's source names: making all of them costs a short script more than its work.
    """
    whole = "BATCH_KEYS" in source
    # Without a \b in front: a literal beginning is found ten times as fast, and a builder too many does no harm.
    used = {*re.findall(r"K\.(\w+)", source), *(BATCH_KEYS if whole else ())}
    lines = [f"local LAYOUT = '{LAYOUT}'", "local K = {}"]
    for name, key in TABLE.items():
        if name not in used:
            continue
        if key.holes:
            lines.append(f"K.{name} = function({', '.join(key.holes)}) return {_lua_expression(key)} end")
        else:
            lines.append(f"K.{name} = {_lua_expression(key)}")
    if whole:
        batch = ", ".join(f"K.{name}" for name in BATCH_KEYS)
        lines.append(f"local BATCH_KEYS = {{{batch}}}")
    return "\n".join(lines)


#: Commands that a key of another type refuses, granted in `config/users.acl`; where a request has what fills a hole.
_PROBES = {"hash": "HLEN", "list": "LLEN", "set": "SCARD", "stream": "XLEN", "string": "STRLEN", "zset": "ZCARD"}
_REQUESTED = {"batch": "b", "scope": "scope", "tracker": "tracker", "workflow": "workflow"}
#: Who writes an entry has narrower rights to these; `once.lua` probes them.
_AUDIT = {"audit", "audit_meta"}


def lua_probes(source: str) -> str:
    """Lua source that fails where a key which a script names is of another type, before the script writes anything.

    The server undoes nothing. A look costs a microsecond a key: it is for what people ask for, not for a lane's steps.
    """
    given = {hole for hole, name in _REQUESTED.items() if re.search(rf"request\.{name}\b", source)}
    lines = []
    for name in sorted({*re.findall(r"K\.(\w+)", source)} & TABLE.keys() - _AUDIT):
        key = TABLE[name]
        if given.issuperset(key.holes) and not key.form.startswith("c:i:"):
            holes = ", ".join(f"request.{_REQUESTED[hole]}" for hole in key.holes)
            lines.append(f"redis.call('{_PROBES[key.type]}', K.{name}{f'({holes})' if holes else ''})")
    return "\n".join(lines)
