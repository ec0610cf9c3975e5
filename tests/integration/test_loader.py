"""The script loader, the rules every script follows, and the table of keys."""

from __future__ import annotations

import re

import pytest

from poimen_tasks.store import loader
from poimen_tasks.store.audit_entries import AuditEntries
from poimen_tasks.store.audit_scripts import AuditScripts
from poimen_tasks.store.cache_scripts import CacheScripts
from poimen_tasks.store.call_scripts import CallScripts
from poimen_tasks.store.keys import BATCH_KEYS, LAYOUT, TABLE, Keys, lua_builders
from poimen_tasks.store.loader import ScriptError, load_script, script_names
from poimen_tasks.store.pause_scripts import PauseScripts
from poimen_tasks.store.scripts import Scripts
from poimen_tasks.store.snapshot_scripts import SnapshotScripts
from poimen_tasks.store.tracker_scripts import Given, TrackerScripts, Who
from poimen_tasks.store.values import WaitingCall
from tests.conftest import ROOT
from tests.integration import calls, lanes
from tests.integration.lanes import begin, open_batch

LUA = ROOT / "poimen_tasks" / "store" / "lua"
INCLUDES = sorted(path.stem for path in (LUA / "include").glob("*.lua"))


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder of Lua sources of the test's own; returns a function that writes one."""
    (tmp_path / "include").mkdir()
    monkeypatch.setattr(loader, "_LUA", tmp_path)
    forget()

    def write(path: str, text: str) -> None:
        (tmp_path / f"{path}.lua").write_text(text)

    yield write
    forget()


def forget() -> None:
    """What was loaded from one folder is not another's."""
    load_script.cache_clear()
    loader._read.cache_clear()


def test_missing_script(sources):
    """A script that is missing is named."""
    with pytest.raises(ScriptError, match=r"'nothing\.lua' is missing"):
        load_script("nothing")


def test_missing_include(sources):
    """An include that is missing is named."""
    sources("verb", "--@include nothing\n")
    with pytest.raises(ScriptError, match=r"'include/nothing\.lua' is missing"):
        load_script("verb")


def test_circular_includes(sources):
    """Includes that form a circle are refused, and the circle is shown."""
    sources("verb", "--@include a\n")
    sources("include/a", "--@include b\n")
    sources("include/b", "--@include a\n")
    with pytest.raises(ScriptError, match="a -> b -> a"):
        load_script("verb")


def test_include_of_itself(sources):
    """An include that includes itself is refused."""
    sources("verb", "--@include a\n")
    sources("include/a", "--@include a\n")
    with pytest.raises(ScriptError, match="a -> a"):
        load_script("verb")


def test_each_include_once(sources):
    """An include that several others need is pasted once, before its first use."""
    sources("verb", "#!lua\n--@include a\n--@include b\nreturn 1")
    sources("include/a", "--@include c\nlocal a = 1")
    sources("include/b", "--@include c\nlocal b = 1")
    sources("include/c", "local c = 1")
    assert load_script("verb").source == "#!lua\nlocal c = 1\nlocal a = 1\nlocal b = 1\nreturn 1\n"


@pytest.mark.parametrize("name", script_names())
def test_script_compiles(store, name):
    """Every script compiles on a real server, and its SHA is the one it is called by."""
    script = load_script(name)
    assert store.client.redis.script_load(script.source) == script.sha
    assert "--@" not in script.source


@pytest.mark.parametrize("name", script_names())
def test_purpose_header(name):
    """Every script's first lines say its server flags, what it is for, and what it is given and returns."""
    lines = (LUA / f"{name}.lua").read_text().splitlines()
    assert re.fullmatch(r"#!lua( flags=allow-oom)?", lines[0])
    header = " ".join(line for line in lines[1:] if line.startswith("--") and not line.startswith("--@"))
    assert lines[1].startswith(f"-- {name}: ")
    if name != "finish":  # its request and reply are those of `step`, told in lane.lua
        assert "Reply: " in header or "include/" in header


@pytest.mark.parametrize("name", INCLUDES)
def test_include_header(name):
    """Every include begins with a comment that says what it is, and some script needs it."""
    assert (LUA / "include" / f"{name}.lua").read_text().startswith("-- ")
    texts = [path.read_text() for path in LUA.rglob("*.lua")]
    assert any(f"--@include {name}\n" in text for text in texts)


@pytest.mark.parametrize("name", script_names())
def test_idempotence_comes_first(name):
    """Every script that is not idempotent by nature looks for its stored reply before anything else (protocol 4)."""
    text = (LUA / f"{name}.lua").read_text()
    natural = {
        "ask_item",
        "await_collect",
        "put_big",
        "renew_calls",
        "restore_slice",
        "snapshot_cut",
        "renew_leases",
        "save_checkpoint",
        "scope_running",
        "start_call",
        "tick",
        "touch_producer",
        "cache_get",
        "cache_hit",
        "cache_list",
        "cache_sweep",
        "tracker_stats",
        "record_event",  # it has its own, see there
        "record_one",
        "describe_audit",
        "leave_sealer",
        "publish_sealed",
        "read_audit",
        "register_sealer",
        "rewind_stream",
    }
    assert ("--@include once\n" in text) == (name not in natural)
    body = [line for line in text.splitlines() if line and not line.startswith(("--", "#!"))]
    assert body[0].startswith("if once_reply then return") == (name not in natural)


def test_every_script_has_its_verb():
    """A verb has one name: the script's file and the method (style)."""
    methods = {
        name
        for kind in (
            Scripts,
            CacheScripts,
            PauseScripts,
            CallScripts,
            SnapshotScripts,
            AuditScripts,
            AuditEntries,
            TrackerScripts,
        )
        for name in vars(kind)
        if not name.startswith("_")
    }
    methods -= {
        "note_failure",
        "activities",
        "close",
        "end_call",
        "end_calls",
        "await_audit",
        "cache_fail",
        "cache_renew",
        "count",
        "counters",
    }  # further words of `cache_finish` and `note_snapshot`, and plain reads
    methods -= {"after", "before", "epoch", "get", "record_events"}
    assert methods | {"finish", "record_one"} == set(script_names())


def test_every_verb_has_its_tests():
    """Each verb has a test file of its name; what `doctor` repairs is tested with it."""
    files = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "integration").glob("test_*.py")}
    assert [name for name in script_names() if name not in files and not name.startswith("repair_")] == []


def test_no_key_is_spelled_in_a_script():
    """Scripts make keys with the table's builders only: what follows a command's name is never a text of their own."""
    for path in LUA.rglob("*.lua"):
        code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
        assert (
            re.findall(
                r"redis\.call\('(?!TIME)\w+', (?!K\.|'(?:STREAM|CREATE|DESTROY)', K\.|(?:\w+_)?key\b|KEYS\[1\],)\S+",
                code,
            )
            == []
        ), path.name


def test_builders_agree(store):
    """The Lua builders and the Python builders make the same keys, with all holes filled."""
    keys = Keys("name:space")
    names = list(TABLE)
    built = [keys.build(name, *(f"<{hole}>" for hole in TABLE[name].holes)) for name in names]
    calls = [
        f"K.{name}" + (f"({', '.join(repr(f'<{hole}>') for hole in TABLE[name].holes)})" if TABLE[name].holes else "")
        for name in names
    ]
    source = f"local root = ARGV[1]\n{lua_builders(str(calls))}\nreturn {{{', '.join(calls)}, LAYOUT}}"
    assert store.client.redis.eval(source, 0, keys.root) == [key.encode() for key in built] + [b"%d" % LAYOUT]


def test_one_hash_slot():
    """All keys of a namespace share one hash slot: its name stands in braces."""
    keys = Keys("shop")
    assert all(keys.build(name, *TABLE[name].holes).startswith("{shop}:") for name in TABLE)


def test_keys_of_a_batch():
    """The keys that get the retention are the keys with a batch in them, but for the lists that end with it."""
    assert set(BATCH_KEYS) == {name for name, key in TABLE.items() if key.holes == ("batch",)}
    assert {name for name, key in TABLE.items() if "batch" in key.holes} - set(BATCH_KEYS) == {"fresh", "back"}


def _pattern(form: str, *, key: bool = False) -> str:
    return re.sub(r"\\\{\w+\\\}", r"[^/]+?" if key else r"[^:/]+", re.escape(form))


def leave_plain_calls(store):
    """Plain calls that are parked, revoked, released, and running."""
    calls.pause(store, "q:plain")
    for name in ("m1", "m2"):
        calls.park(store, calls.call(name, queue="plain"), groups=["g"], keep=60.0)
    store.calls.revoke_calls(["m1"])
    calls.resume(store, "q:plain")
    assert store.calls.park_call(calls.back("m2", queue="plain")) == ("begin", "")


def test_every_key_is_in_the_table(store, eventually):
    """All keys that a workload leaves are of a form and a type in the table."""
    parts = [lanes.part("q1"), lanes.part("q2")]
    lanes.offer(store, 2, "q1", "q2")
    tickets = open_batch(
        store,
        "a",
        300,
        parts=parts,
        of=lambda position: position % 2,
        ids=[f"i{n}" for n in range(300)],
        labels=["T1.1"] * 300,
        delayed={298: 0.0, 299: 9e9},
        callbacks=["success", "complete"],
    )
    lost, lane, *_ = [begin(store, ticket, 4) for ticket in tickets]
    first, second, *others = lane.holds
    lane.finish("stay", ok=[first], retry={second: 60.0}, give=others)
    lanes.reap(store, lost)
    piece = lanes.make_slice(0, 2, big=[(1, b"large")])
    store.scripts.open_batch("c", record=lanes.record(), parts=[lanes.PART], piece=piece, seal=True)
    lanes.run_all(store, open_batch(store, "d", 3, callbacks=["success"]))
    for scope in ("q:z", "a:y"):
        store.pauses.pause_scope(scope, reason="", actor="me", expires=60.0, request_id="r")
    store.pauses.pause_scope("q:celery", reason="", actor="me")
    for number in range(101):
        open_batch(store, f"held{number}", 1, parts=[lanes.part("celery")])
    store.pauses.resume_scope("q:celery", reason="", actor="me", rate=1.0)
    for number in range(21):
        open_batch(store, f"w{number}", 0)
    store.pauses.pause_scope("*", reason="", actor="me")
    store.pauses.resume_scope("*", reason="", actor="me")
    store.client.redis.zadd(store.keys.build("keeping"), {"w:w": 1.0})
    leave_plain_calls(store)
    saving = begin(store, open_batch(store, "s", 1, parts=[lanes.part("q3")])[0])
    store.pauses.save_checkpoint("s", 0, token=saving.token, state=b"state")
    cached = open_batch(store, "e", 3, parts=[lanes.part(cached=True)], keys=["x"] * 3)
    begin(store, cached[0])
    begin(store, open_batch(store, "f", 2, parts=[lanes.part(cached=True)], keys=["x", "y"])[0])
    store.cache.cache_put([lanes.entry("z", ttl=60.0, tags=("t",)), lanes.entry("w", tags=("u",))])
    store.cache.cache_begin(lanes.digest("v"), activity="acts.work", owner="o", lease=60.0)
    store.cache.cache_begin(lanes.digest("v"), activity="acts.work", owner="p", lease=60.0)
    store.cache.cache_begin(
        lanes.digest("v"), activity="acts.work", owner="r", lease=60.0, call=WaitingCall("m", b"message")
    )
    store.cache.cache_finish(lanes.entry("v"), owner="o")
    store.snapshots.restore_begin("s1", workflow="z", holder="h", batches=["z"])
    store.scripts.drain_workers(["w1"], actor="me", reason="")
    store.trackers.tracker_update("t", [Given("T1")], begin=("pending", 0), who=Who("me"))
    store.entries.record_event("e1", b"{}")
    store.entries.record_event("e2", b"{}")
    hide = {"scopes": ["g:u"], "keys": [], "actor": "me", "reason": ""}
    store.client.call("cache_invalidate", hide, owner="q", sequence=1)

    found = {}
    for key in store.client.redis.scan_iter(match=f"{store.keys.root}*"):
        form = key.decode("latin-1").removeprefix(store.keys.root)
        names = [
            name
            for name, row in TABLE.items()
            if re.fullmatch(_pattern(row.form, key=row.form.startswith(("c:", "p:", "s:r:"))), form, re.DOTALL)
        ]
        assert names, f"{form} is not in the table"
        found[names[0]] = store.client.redis.type(key).decode()
    assert {name: TABLE[name].type for name in found} == found
    assert set(TABLE) - set(found) == set()
