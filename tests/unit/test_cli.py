"""The command line without a server: finding the app, options and exit codes, what is printed."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from os import getuid
from pathlib import Path
from pwd import getpwuid
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from poimen_tasks import BatchNotFound, BatchState, BatchStatus, StoreUnavailable
from poimen_tasks.cli import cancel, concurrency, doctor, loading, main, output, retry, status, watch, worker
from poimen_tasks.health import Finding, Level, check_environment
from poimen_tasks.model import ErrorInfo, ItemStatus, Outcome
from poimen_tasks.settings import Settings
from poimen_tasks.store.reads import WorkerInfo
from tests.conftest import ROOT

NOW = datetime(2025, 11, 29, 12, 0, tzinfo=UTC)
URL = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """No settings of the machine, a directory of its own, and the environment restored: commands write to it."""
    for name in list(os.environ):
        if name.startswith("POIMEN_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture
def run():
    """Run a command line; returns the result."""

    def invoke(*words):
        return CliRunner().invoke(main, words, prog_name="poimen")

    return invoke


@pytest.fixture
def module(tmp_path):
    """Write a module of a name that no other test has; returns the name."""

    def write(text, *, name=None):
        name = name or f"shop_{secrets.token_hex(4)}"
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    return write


PLAIN = "from celery import Celery\nfrom poimen_tasks import Poimen\n"
OURS = f"{PLAIN}poimen = Poimen('shop', redis_url='{URL}')\napp = poimen.celery\n"
THEIRS = f"{PLAIN}app = Celery('theirs', broker='{URL}', set_as_current=False)\n"


def find(app):
    return loading.load(app, None)


# ------------------------------------------------------------------------------------------- the app
def test_module_with_a_poimen(module):
    """A module's Poimen is found, by the module's name alone or with its own."""
    name = module(OURS)
    assert find(name) is find(f"{name}:poimen") is sys.modules[name].poimen


@pytest.mark.parametrize("app", [":", ":app", "shop:"])
def test_half_of_a_place(app):
    """A place with a colon and nothing on one side of it is said to be wrong, and how it should look."""
    with pytest.raises(output.Failure, match=f"expected MODULE or MODULE:NAME, as shop or shop:poimen, got '{app}'"):
        find(app)


def test_celery_app(module):
    """A Celery app that a Poimen was made for leads to it."""
    name = module(f"{THEIRS}batches = Poimen(app)\n")
    assert find(f"{name}:app") is sys.modules[name].batches


def test_poimen_in_another_module(module):
    """The Poimen may be in a module that the app's module imports, or that only workers import by themselves."""
    late = module("", name=f"late_{secrets.token_hex(4)}")
    name = module(f"{THEIRS}app.conf.imports = ['{late}']\n")
    module(f"from {name} import app\nfrom poimen_tasks import Poimen\nbatches = Poimen(app)\n", name=late)
    assert find(name) is sys.modules[late].batches


def test_package_with_a_celery_module(module):
    """A package is searched like `celery -A` does: its module `celery` holds the app."""
    package = f"proj_{secrets.token_hex(4)}"
    module("", name=f"{package}.__init__")
    module(f"{THEIRS}poimen = Poimen(app)\n", name=f"{package}.celery")
    assert find(package) is sys.modules[f"{package}.celery"].poimen


def test_the_working_directory_is_searched(module, monkeypatch, tmp_path):
    """A module in the working directory is found though the command's own directory comes first on the path."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    name = module(OURS)
    assert find(name) is sys.modules[name].poimen


def test_objects_that_lie_about_their_class(module):
    """A proxy that fails when it is asked for its class is passed over."""
    proxy = "class Proxy:\n    __class__ = property(lambda self: 1 / 0)\nrequest = Proxy()\n"
    name = module(proxy + OURS)
    assert find(name) is sys.modules[name].poimen


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", ["holds no Poimen and no Celery app", "Poimen(app)"]),
        (OURS, ":nothing", ["no attribute 'nothing'", "app, poimen"]),
        ("x = 1", ":x", ["is a int", "expected a Poimen"]),
        (THEIRS, "", ["no Poimen was made", "Poimen(app)"]),
        (f"{OURS}other = Poimen('other')\n", "", ["several", ":poimen", ":other"]),
        ("import nothing_of_this_name", "", ["ModuleNotFoundError", "nothing_of_this_name", "line 1"]),
        ("\n1 / 0", "", ["ZeroDivisionError", "line 2"]),
        ("raise SystemExit('usage')", "", ["SystemExit"]),
        (f"{THEIRS}def make():\n    Poimen(app)\nmake()\n", "", ["is in no module", "keep it"]),
        (f"{PLAIN}poimen = Poimen('shop', lease=-1)", "", ["SettingsError", "POIMEN_LEASE"]),
    ],
)
def test_no_app(run, module, text, place, words):
    """Whatever is wrong with the app is said in one line that names it, with exit code 1."""
    result = run("status", "-A", module(text) + place)
    assert result.exit_code == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_unknown_module(run, tmp_path):
    """A module that is not there is named with where it was looked for; a file's name is put right."""
    result = run("status", "-A", "shop.py")
    assert "no module named 'shop.py'" in result.stderr
    assert str(tmp_path) in result.stderr
    assert "-A shop" in result.stderr


def test_app_is_required(run):
    """A command about an app that is given none was misused: exit code 2, and it says where to give it."""
    result = run("status")
    assert (result.exit_code, "POIMEN_APP" in result.stderr) == (2, True)


def test_where_the_app_is_given(run, module, monkeypatch):
    """Behind the command, before it, or in the environment; the nearest wins."""
    seen = []
    monkeypatch.setattr(status, "load", lambda app, _directory: seen.append(app) or _stop())
    run("status", "-A", "one")
    run("-A", "two", "status")
    monkeypatch.setenv("POIMEN_APP", "three")
    run("status")
    run("-A", "two", "status", "-A", "one")
    assert seen == ["one", "two", "three", "one"]


def _stop():
    raise BatchNotFound("stop")


def test_no_redis(run, module):
    """An app without a Redis is told of the variable and of `poimen up`."""
    result = run("status", "-A", module(f"{PLAIN}poimen = Poimen('shop')\n"))
    assert (result.exit_code, "POIMEN_REDIS_URL" in result.stderr, "poimen up" in result.stderr) == (1, True, True)


# ------------------------------------------------------------------------------------------- the server
def test_server_of_the_data_directory(module, monkeypatch, tmp_path):
    """Without POIMEN_REDIS_URL the server of `poimen up` is set before the app is imported."""
    monkeypatch.setattr(loading, "running_url", lambda directory: f"redis://127.0.0.1:2/{len(str(directory))}")
    name = module(f"{PLAIN}poimen = Poimen('shop')\n")
    assert loading.load(name, tmp_path).redis_url == f"redis://127.0.0.1:2/{len(str(tmp_path))}"


def test_redis_url_wins(module, monkeypatch):
    """POIMEN_REDIS_URL is used though a server runs in the data directory."""
    monkeypatch.setattr(loading, "running_url", lambda _directory: "redis://127.0.0.1:2/0")
    monkeypatch.setenv("POIMEN_REDIS_URL", URL)
    assert find(module(f"{PLAIN}poimen = Poimen('shop')\n")).redis_url == URL


@pytest.mark.parametrize("url", [None, "still starting"])
def test_no_server_in_the_data_directory(monkeypatch, url):
    """No server, or one that is not up yet, leaves the setting alone."""
    monkeypatch.setattr(loading, "running_url", lambda _directory: url)
    loading.find_server(None)
    assert "POIMEN_REDIS_URL" not in os.environ


def test_directory_becomes_the_setting(monkeypatch, tmp_path):
    """A directory that is given is the data directory of this process and of the worker it starts."""
    loading.find_server(tmp_path / "elsewhere")
    assert os.environ["POIMEN_DATA_DIR"] == str(tmp_path / "elsewhere")


# ------------------------------------------------------------------------------------------- worker
def test_name_for_celery(module):
    """A worker is started under a name that `celery -A` understands."""
    name = module(OURS)
    poimen = find(name)
    assert loading.celery_name(name, poimen) == name
    assert loading.celery_name(f"{name}:poimen", poimen) == f"{name}:app"


def test_no_name_for_celery(module):
    """A module without the Celery app is told to hold it."""
    name = module(f"{PLAIN}poimen = Poimen('shop', redis_url='{URL}')\n")
    with pytest.raises(output.Failure, match=r"add `app = poimen\.celery`"):
        loading.celery_name(name, find(name))


def test_worker_becomes_celery(run, module, monkeypatch):
    """`poimen worker` is `celery -A app worker`; options that are not ours are passed on as they are."""
    calls = []
    monkeypatch.setattr(os, "execv", lambda path, words: calls.append((path, words)))
    name = module(OURS)
    theirs = ["-E", "--max-tasks-per-child", "5", "-O", "fair"]
    result = run("worker", "-A", name, "-c", "3", "-Q", "a,b", "-P", "solo", *theirs)
    assert result.exit_code == 0, result.output
    ((path, words),) = calls
    node = words[words.index("-n") + 1]
    expected = ["-c", "3", "-Q", "a,b", "-P", "solo", "-l", "info", *theirs]
    assert path == sys.executable
    assert words == [sys.executable, "-m", "celery", "-A", name, "worker", "-n", node, *expected]
    assert node == f"poimen-{os.getpid()}@%h"


@pytest.mark.parametrize("command", [["status"], ["worker"], ["run", "calls.jsonl"]])
def test_an_interrupt_while_the_app_is_imported(run, module, command):
    """Ctrl-C while modules of the app are imported is exit code 130 and one line; for programs an object too."""
    Path("calls.jsonl").touch()
    name = module("raise KeyboardInterrupt\n")
    result = run(*command, "-A", name)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (130, "", 1), result.output
    assert "interrupted" in result.stderr


def test_an_interrupt_for_programs(run, module):
    """With --json an interrupted command says so on stdout."""
    result = run("status", "-A", module("raise KeyboardInterrupt\n"), "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["type"]) == (130, "KeyboardInterrupt")


def test_worker_for_programs(run, module, monkeypatch):
    """With --json a worker tells who it is in one object, and Celery's banner stays away from it."""
    calls = []
    monkeypatch.setattr(os, "execv", lambda path, words: calls.append([path, *words]))
    name = module(OURS.replace("redis://", "redis://:geheim@"))
    result = run("worker", "-A", name, "-c", "1", "--json")
    told = json.loads(result.stdout)
    assert (told["app"], told["pid"], told["command"]) == (name, os.getpid(), calls[0][2:])
    assert "geheim" not in result.stdout
    assert calls[0][2:6] == ["-m", "celery", "-q", "-A"]


@pytest.mark.parametrize("options", [["-n", "mine@h"], ["-nmine@h"], ["--hostname", "mine@h"], ["--hostname=mine@h"]])
def test_own_node_name(options):
    """A node name of the user's own is kept."""
    words = worker.worker_command("shop", options, node="ours")
    assert words[6:] == options


# ------------------------------------------------------------------------------------------- status
def batch_status(batch_id="b1", state=BatchState.RUNNING, **changes):
    numbers = dict.fromkeys(
        ("total", "pending", "delayed", "waiting", "running", "succeeded", "failed", "cancelled", "skipped", "cached"),
        0,
    )
    fields = {"workflow": "nightly", "stage": "default", "concurrency": 4}
    fields |= {"created_at": NOW, "started_at": NOW, "finished_at": None}
    return BatchStatus(batch_id=batch_id, state=state, **{**fields, **numbers, **changes})


class FakeBatch:
    """A handle that tells these statuses, the last one for ever, and these outcomes."""

    def __init__(self, *found, outcomes=(), errors=None):
        self.id = found[0].batch_id if isinstance(found[0], BatchStatus) else "gone"
        self.errors = errors or {}
        self.found = list(found)
        self.given = outcomes
        self.asked = {}

    def status(self):
        """The next status, or what it raises."""
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, BaseException):
            raise found
        return found

    def outcomes(self, **asked):
        """All outcomes."""
        self.asked = asked
        return iter(self.given)

    def wait(self):
        """A report with some numbers."""
        numbers = {"speedup": 3.5, "efficiency": 0.9, "p95_duration": 0.25}
        return SimpleNamespace(stats=lambda: numbers, errors=self.errors)

    def set_concurrency(self, limit, actor):
        """Remember the limit and who."""
        self.asked = {"limit": limit, "actor": actor}

    def retry_failed(self, actor):
        """As many as there are errors."""
        self.asked = {"actor": actor}
        return len(self.errors)

    def cancel(self, reason, actor, *, terminate):
        """Remember who and why."""
        self.asked = {"reason": reason, "actor": actor, "terminate": terminate}
        return self.status()


@pytest.fixture
def use(monkeypatch):
    """Let the commands find these batches and workers."""

    def put(*batches, workers=()):
        reads = SimpleNamespace(now=lambda: NOW.timestamp() + 60, workers=lambda: list(workers))
        poimen = SimpleNamespace(
            batches=lambda **_chosen: list(batches),
            batch=lambda _batch_id: batches[0],
            store=SimpleNamespace(reads=reads),
            celery=SimpleNamespace(conf={}),
            redis_url=URL,
        )
        for command in (status, watch, cancel, concurrency, retry):
            monkeypatch.setattr(command, "load", lambda _app, _directory: poimen)
        monkeypatch.setattr(doctor, "load_without_server", lambda _app, _directory: poimen)
        monkeypatch.setattr(watch, "_EVERY", 0.0)
        monkeypatch.setattr(watch, "_EVERY_LINE", 0.0)

    return put


WORKER = WorkerInfo(
    "w@h/7", NOW.timestamp() + 59, (("celery", 4), ("gpu", 4)),
    {"hostname": "w@h", "pid": 7, "pool": "celery.concurrency.prefork", "slots": 4},
)  # fmt: skip


def test_overview(run, use):
    """The overview lists batches and workers, a line each, and nothing of an id is cut in a pipe."""
    long = "b" * 128
    use(FakeBatch(batch_status(long, total=1000, succeeded=210, failed=3, running=4, pending=783)), workers=[WORKER])
    result = run("status", "-A", "shop")
    (row,) = [line for line in result.stdout.splitlines() if long in line]
    assert row.split()[1:] == [
        "nightly",
        "default",
        "running",
        "213/1,000",
        "21%",
        "3",
        "4",
        "4",
        "2025-11-29",
        "12:00:00",
        "60",
        "s",
    ]
    (row,) = [line for line in result.stdout.splitlines() if "w@h" in line]
    assert row.split() == ["w@h", "7", "prefork", "4", "1", "s", "ago", "celery,", "gpu"]


@pytest.mark.parametrize(("columns", "names"), [
    (120, "BATCH WORKFLOW STAGE STATE DONE FAILED RUNNING LIMIT CREATED (UTC) AGE"),
    (80, "BATCH WORKFLOW STATE DONE FAILED RUNNING AGE"),
    (60, "BATCH STATE DONE AGE"),
    (40, "BATCH STATE DONE"),
])  # fmt: skip
def test_overview_on_a_screen(run, use, monkeypatch, columns, names):
    """A batch's id and state are whole on any screen, however long the names of workflows are."""
    monkeypatch.setattr(status, "console", lambda: Console(width=columns))
    use(FakeBatch(batch_status("849e855c-dcab-4742-9b37-655b10bda467", workflow="w" * 40)))
    title, *lines = run("status", "-A", "shop").stdout.splitlines()
    lines = lines[: lines.index("")]
    assert max(map(len, (title, *lines))) <= columns
    assert title.split() == names.split()
    assert "".join(line.split()[0] for line in lines) == "849e855c-dcab-4742-9b37-655b10bda467"
    assert "running" in lines[0].split()


def test_a_moment():
    """A moment is told in UTC and seconds, whatever its zone; a title of a column may say the zone."""
    at = datetime(2025, 11, 29, 13, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=1)))
    assert output.when(at) == "2025-11-29 12:00:00 UTC"
    assert output.when(at, zone=False) == "2025-11-29 12:00:00"
    assert (output.when(None), output.when(None, zone=False)) == ("-", "-")


def test_no_spaces_at_the_ends(run, use):
    """In a pipe no line ends in the spaces that fill its column."""
    use(FakeBatch(batch_status("b1")), FakeBatch(batch_status("a-longer-name")), workers=[WORKER])
    lines = run("status", "-A", "shop").stdout.splitlines()
    assert any("w@h" in line for line in lines)
    assert lines == [line.rstrip() for line in lines]


def test_overview_for_programs(run, use):
    """With --json the overview is one strict JSON object."""
    use(FakeBatch(batch_status(total=2, running=2)), workers=[WORKER])
    found = json.loads(run("status", "-A", "shop", "--json").stdout)
    assert [row["batch_id"] for row in found["batches"]] == ["b1"]
    assert found["workers"] == [
        {
            "name": "w@h/7", "hostname": "w@h", "pid": 7, "pool": "prefork", "queues": ["celery", "gpu"], "slots": 4,
            "last_seen": pytest.approx(1.0), "alive": True, "leaving": False,
        }
    ]  # fmt: skip


def test_a_worker_that_leaves(run, use):
    """A worker that was drained and is still there is marked."""
    use(workers=[WORKER._replace(leaving=True)])
    (row,) = [line for line in run("status", "-A", "shop").stdout.splitlines() if "w@h" in line]
    assert "1 s ago, leaving" in row
    assert json.loads(run("status", "-A", "shop", "--json").stdout)["workers"][0]["leaving"] is True


def test_batches_that_expired(run, use):
    """A batch that is listed though its retention is over is passed over."""
    use(FakeBatch(BatchNotFound("gone")), FakeBatch(batch_status("there")))
    found = json.loads(run("status", "-A", "shop", "--json").stdout)
    assert [row["batch_id"] for row in found["batches"]] == ["there"]


def test_state_and_limit(run, use):
    """--state chooses, --limit bounds, and it is said when there are more."""
    states = [BatchState.RUNNING, BatchState.FAILED, BatchState.FAILED, BatchState.FAILED]
    use(*(FakeBatch(batch_status(f"b{at}", state)) for at, state in enumerate(states)))
    found = json.loads(run("status", "-A", "shop", "--json", "--state", "failed", "--limit", "2").stdout)
    assert ([row["batch_id"] for row in found["batches"]], found["more"]) == (["b1", "b2"], True)
    assert "--limit 4" in run("status", "-A", "shop", "--state", "failed", "--limit", "2").stdout


def test_nothing_there(run, use):
    """Without batches and workers the next step is shown, with the app in it."""
    use()
    result = run("status", "-A", "shop")
    assert (result.exit_code, "poimen worker -A shop" in result.stdout) == (0, True)


def test_one_batch(run, use):
    """One batch shows its numbers and times, and for a queue that nobody serves what to do."""
    found = batch_status(total=10, pending=10, started_at=None, unserved_queues=("gpu",))
    use(FakeBatch(found))
    result = run("status", "-A", "shop", "b1")
    assert "no worker serves queue gpu: start one with `poimen worker -A shop -Q gpu`" in result.stdout
    assert json.loads(run("status", "-A", "shop", "b1", "--json").stdout)["advice"]


def test_finished_batch(run, use):
    """A finished batch also shows its speedup and percentiles."""
    found = batch_status(state=BatchState.COMPLETED, total=10, succeeded=10, finished_at=NOW + timedelta(seconds=5))
    use(FakeBatch(found))
    result = run("status", "-A", "shop", "b1")
    assert ("3.50" in result.stdout, "0.25 s" in result.stdout) == (True, True)
    given = json.loads(run("status", "-A", "shop", "b1", "--json").stdout)
    assert (given["times"], given["stats"]["speedup"]) == ({"waited": 0.0, "ran": 5.0, "rate": 2.0}, 3.5)


def test_failed_batch(run, use):
    """A failed batch shows its first errors, and how many more there are."""
    use(FakeBatch(batch_status(state=BatchState.FAILED, total=9, failed=7), errors={str(n): FAILURE for n in range(7)}))
    shown = run("status", "-A", "shop", "b1").stdout
    assert "  item 4: ValueError: bad number  [31m7\n" in shown
    assert "  and 2 more: `poimen watch -A shop b1 --json` has them all" in shown
    given = json.loads(run("status", "-A", "shop", "b1", "--json").stdout)["first_errors"]
    assert [row["item_id"] for row in given] == ["0", "1", "2", "3", "4"]
    assert given[0] == {"item_id": "0", "type": "ValueError", "message": FAILURE.message}


def test_stalled_batch(run, use):
    """A batch whose producer is gone says how to go on."""
    use(FakeBatch(batch_status(state=BatchState.STALLED)))
    assert "poimen cancel -A shop b1" in run("status", "-A", "shop", "b1").stdout


def test_options_that_do_not_go_together(run, use):
    """Choosing among batches and naming one is misuse."""
    use(FakeBatch(batch_status()))
    assert run("status", "-A", "shop", "b1", "--state", "failed").exit_code == 2
    assert run("watch", "-A", "shop", "b1", "--after", "5").exit_code == 2
    assert run("status", "-A", "shop", "--state", "nonsense").exit_code == 2


# ------------------------------------------------------------------------------------------- watch
def outcome(item_id, status=ItemStatus.SUCCEEDED, result=None, error=None, cursor=65_536):
    return Outcome((item_id, status, result, error, NOW.timestamp(), 0.5, 0.1, 1, "w@h", False, cursor))


FAILURE = ErrorInfo(type="ValueError", message="bad\nnumber \x1b[31m7")


@pytest.mark.parametrize(
    ("state", "code"), [(BatchState.COMPLETED, 0), (BatchState.FAILED, 1), (BatchState.CANCELLED, 1)]
)
def test_watch_tells_how_it_ended(run, use, state, code):
    """The exit code is 0 when every item succeeded and 1 otherwise, with and without --json."""
    use(FakeBatch(batch_status(state=state, total=1)))
    assert run("watch", "-A", "shop", "b1").exit_code == code
    assert run("watch", "-A", "shop", "b1", "--json").exit_code == code


def test_watch_in_a_pipe(run, use):
    """Without a terminal progress is a line when something changed; failed items follow with their reasons."""
    steps = [batch_status(total=7, succeeded=n, pending=7 - n) for n in (0, 3, 3)]
    last = batch_status(state=BatchState.FAILED, total=7, succeeded=1, failed=6)
    use(FakeBatch(*steps, last, errors={str(n): FAILURE for n in range(6)}))
    result = run("watch", "-A", "shop", "b1")
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["0/7", "3/7"]
    assert "1 of 7 items succeeded, 6 failed" in lines[2]
    assert lines[3] == "  item 0: ValueError: bad number  [31m7"
    assert "and 1 more" in lines[-1]


def test_watch_streams_outcomes(run, use):
    """With --json each outcome is a line of strict JSON with its cursor, and --after goes on behind one."""
    batch = FakeBatch(
        batch_status(state=BatchState.COMPLETED),
        outcomes=[outcome("a", result=float("nan")), outcome("b", result=NOW, cursor=65_537)],
    )
    use(batch)
    lines = [
        json.loads(line) for line in run("watch", "-A", "shop", "b1", "--json", "--after", "9").stdout.splitlines()
    ]
    assert [(row["item_id"], row["result"], row["cursor"]) for row in lines] == [
        ("a", "NaN", 65_536),
        ("b", NOW.isoformat(), 65_537),
    ]
    assert batch.asked == {"after": 9, "timeout": None}


def test_detaching(run, use):
    """Ctrl-C leaves the batch alone and says how to follow it again."""
    use(FakeBatch(batch_status(), KeyboardInterrupt()))
    result = run("watch", "-A", "shop", "b1")
    assert (result.exit_code, "poimen watch -A shop b1" in result.stderr, "goes on" in result.stderr) == (
        130,
        True,
        True,
    )


def test_watching_for_a_while(run, use):
    """A timeout ends the watching, not the batch, with an exit code of its own and the way back."""
    use(FakeBatch(batch_status(total=5, succeeded=2)))
    result = run("watch", "-A", "shop", "b1", "--timeout", "0")
    assert result.exit_code == 124
    assert "0 s are over and batch b1 is not: 2 of 5 items are finished" in result.stderr
    assert "`poimen watch -A shop b1` follows it again" in result.stderr


# ------------------------------------------------------------------------------------------- retry, concurrency
def test_retry(run, use):
    """Failed items run again in the name of who asks; when none has failed there is nothing to do."""
    batch = FakeBatch(batch_status(failed=1), errors={"a": FAILURE})
    use(batch)
    result = run("retry", "-A", "shop", "b1", "--actor", "cron")
    assert (result.exit_code, "1 failed item runs again: `poimen watch -A shop b1`" in result.stdout) == (0, True)
    assert batch.asked == {"actor": "cron"}
    given = json.loads(run("retry", "-A", "shop", "b1", "--json").stdout)
    assert (given["batch_id"], given["retried"], given["status"]["failed"]) == ("b1", 1, 1)
    use(FakeBatch(batch_status()))
    result = run("retry", "-A", "shop", "b1")
    assert (result.exit_code, "nothing to do" in result.stdout) == (0, True)


def test_concurrency(run, use):
    """A limit is a whole number, or all for the whole fleet; it is told with the one before."""
    batch = FakeBatch(batch_status())
    use(batch)
    result = run("concurrency", "-A", "shop", "b1", "20", "--actor", "cron")
    assert (result.exit_code, result.stdout) == (0, "limit of b1: 4 -> 20\n")
    assert batch.asked == {"limit": 20, "actor": "cron"}
    assert run("concurrency", "-A", "shop", "b1", "all").stdout == "limit of b1: 4 -> the whole fleet\n"
    assert batch.asked["limit"] is None
    assert json.loads(run("concurrency", "-A", "shop", "b1", "2", "--json").stdout)["batch_id"] == "b1"


@pytest.mark.parametrize("limit", ["0", "-1", "many", "1.5", "²"])
def test_limits_that_are_none(run, use, limit):
    """Anything but a whole number from 1 or all is misuse."""
    use(FakeBatch(batch_status()))
    result = run("concurrency", "-A", "shop", "b1", "--", limit)
    assert (result.exit_code, "whole number from 1" in result.stderr) == (2, True)


def test_too_late_for_a_limit(run, use):
    """A batch that is over has nothing to limit."""
    use(FakeBatch(batch_status(state=BatchState.FAILED)))
    result = run("concurrency", "-A", "shop", "b1", "2")
    assert (result.exit_code, "over already" in result.stderr) == (1, True)


# ------------------------------------------------------------------------------------------- cancel
def test_cancel(run, use, monkeypatch):
    """Cancelling says what becomes of the rest; the actor is who sits at the terminal, unless given."""
    monkeypatch.setenv("USER", "ada")
    batch = FakeBatch(batch_status(state=BatchState.RUNNING, total=10, succeeded=2, cancelled=5, running=3))
    use(batch)
    result = run("cancel", "-A", "shop", "b1", "--reason", "wrong input")
    assert result.exit_code == 0
    assert "2 of 10 items had finished, 5 did not start, 3 are still running" in result.stdout
    assert batch.asked == {"reason": "wrong input", "actor": "ada", "terminate": False}
    run("cancel", "-A", "shop", "b1", "--actor", "cron", "--terminate")
    assert batch.asked == {"reason": "", "actor": "cron", "terminate": True}


@pytest.mark.parametrize(
    ("user", "actor"),
    [("ada", "ada"), ("CORP\\ada l", "CORP-ada-l"), ("_x", "x"), ("", getpwuid(getuid()).pw_name), ("é", "unknown")],
)
def test_actor_is_a_name(monkeypatch, user, actor):
    """A user name becomes one that the audit log takes; without one in the environment it is that of the process."""
    for name in ("LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", user)
    assert cancel.default_actor() == actor


@pytest.mark.parametrize("state", [BatchState.COMPLETED, BatchState.FAILED])
def test_too_late_to_cancel(run, use, state):
    """A batch that is over is not cancelled: exit code 1; one that was cancelled before is fine."""
    use(FakeBatch(batch_status(state=state)))
    result = run("cancel", "-A", "shop", "b1")
    assert (result.exit_code, "over already" in result.stderr) == (1, True)
    use(FakeBatch(batch_status(state=BatchState.CANCELLED)))
    assert run("cancel", "-A", "shop", "b1").exit_code == 0


# ------------------------------------------------------------------------------------------- doctor
@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([Finding(Level.OK, "server", "s", "fine")], 0),
        ([Finding(Level.WARNING, "keys", "dead", "left", "run `poimen doctor -A APP --repair`", repairable=True)], 0),
        ([Finding(Level.ERROR, "eviction", "s", "evicts", "stop it")], 1),
        ([Finding(Level.ERROR, "slots", "s", "off", repairable=True, repaired=True)], 0),
    ],
)
def test_doctor(run, use, monkeypatch, found, code):
    """The doctor exits 1 when an error stands, prints a row a finding, and advice with the app in it."""
    use()
    monkeypatch.setattr(doctor, "examine", lambda *_given, **_options: iter(found))
    result = run("doctor", "-A", "shop")
    assert (result.exit_code, found[0].message in result.stdout) == (code, True)
    assert ("poimen doctor -A shop --repair" in result.stdout) == (found[0].level is Level.WARNING)
    given = json.loads(run("doctor", "-A", "shop", "--json").stdout)
    assert given["ok"] is (code == 0)
    assert [row["check"] for row in given["findings"]] == [found[0].check]


def test_doctor_without_redis(run, module, monkeypatch):
    """Without a Redis the doctor still tells of the settings, and which variable to set; exit code 1."""
    monkeypatch.setenv("POIMEN_LAESE", "3")
    name = module(f"{PLAIN}poimen = Poimen('shop')\n")
    result = run("doctor", "-A", name)
    assert (result.exit_code, "POIMEN_REDIS_URL: not set" in result.stdout) == (1, True)
    assert f"`poimen up -A {name}`" in result.stdout
    given = {row["check"]: row for row in json.loads(run("doctor", "-A", name, "--json").stdout)["findings"]}
    assert given["settings"]["subject"] == "POIMEN_REDIS_URL"
    assert (given["environment"]["subject"], given["environment"]["advice"]) == (
        "POIMEN_LAESE",
        "did you mean POIMEN_LEASE?",
    )
    assert given["celery"]["level"] == "ok"


def test_names_in_the_environment():
    """Each setting, in upper or lower case, and POIMEN_APP are known; what is like none of them has no near one."""
    known = [f"POIMEN_{name.upper()}" for name in Settings.model_fields]
    (found,) = check_environment([*known, "POIMEN_APP", "poimen_lease", "PATH"])
    assert found.level is Level.OK
    (found,) = check_environment(["POIMEN_ZZZZZZ"])
    assert (found.level, found.subject, "did you mean" in found.advice) == (Level.WARNING, "POIMEN_ZZZZZZ", False)


# ------------------------------------------------------------------------------------------- printing
def test_errors_of_ours(run, monkeypatch):
    """An error of ours is one line with its notes, exit code 1; with --json an object on stdout too."""
    error = StoreUnavailable("Redis at redis://:***@h/0 does not answer:\nstart it")
    error.add_note("nothing was written")
    monkeypatch.setattr(status, "load", lambda _app, _directory: (_ for _ in ()).throw(error))
    result = run("status", "-A", "shop", "--json")
    assert result.exit_code == 1
    assert result.stderr == "error: Redis at redis://:***@h/0 does not answer: start it; nothing was written\n"
    assert json.loads(result.stdout)["error"]["type"] == "StoreUnavailable"
    assert run("status", "-A", "shop").stdout == ""


def test_help(run):
    """Every command has its help; each option of it says what it does."""
    groups = {name: one for name, one in main.commands.items() if isinstance(one, click.Group)}
    single = {(name,): one for name, one in main.commands.items() if name not in groups}
    inner = {(name, word): one for name, group in groups.items() for word, one in group.commands.items()}
    for name, command in (single | inner).items():
        assert run(*name, "--help").exit_code == 0
        options = [option for option in command.params if isinstance(option, click.Option)]
        assert all(option.help for option in options), name
        common = {"app", "directory", "as_json"}
        # An auditor has files and a key, a board is a file: neither needs an app.
        alone = {("audit", "check"), ("board", "check"), ("board", "show")}
        assert {option.name for option in options} >= ({"as_json"} if name in alone else common), name
    assert list(main.commands) == [
        "up",
        "worker",
        "run",
        "status",
        "watch",
        "cancel",
        "pause",
        "resume",
        "pauses",
        "retry",
        "concurrency",
        "cache",
        "snapshot",
        "drain",
        "board",
        "tracker",
        "audit",
        "flower",
        "health",
        "metrics",
        "doctor",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"), (0, "0 s"), (0.2534, "0.253 s"), (9.99, "9.99 s"), (59.6, "1 min"), (185, "3 min 5 s"),
        (7_440, "2 h 4 min"), (3 * 86_400 + 7_200, "3 d 2 h"), (42, "42 s"),
    ],
)  # fmt: skip
def test_durations(seconds, words):
    """Durations are said in the unit that fits."""
    assert output.duration(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (119, "119 s"), (180, "3 min"), (7_300, "2 h"), (200_000, "2 d"), (-5, "0 s")]
)
def test_ages(seconds, words):
    """An age is said in one unit, and never below zero."""
    assert output.since(NOW - timedelta(seconds=seconds), NOW) == words


@pytest.mark.parametrize(
    ("done", "total", "words"), [(0, 0, "0/0 100%"), (999_999, 1_000_000, "999,999/1,000,000  99%"), (5, 5, "5/5 100%")]
)
def test_progress(done, total, words):
    """100 % is shown only when nothing is missing."""
    assert output.share(done, total) == words


def test_foreign_text_stays_on_its_line():
    """Text that others wrote cannot break a line or move the cursor (fault K07)."""
    assert output.one_line("a\nb\x1b[2Jc\x07") == "a b [2Jc"
    assert len(output.one_line("x" * 5000)) == 300


def test_without_a_stdout(tmp_path):
    """A command whose stdout is closed ends as if nobody had wanted its words: no traceback."""
    command = [sys.executable, "-m", "poimen_tasks.cli", "snapshot", "list", "--dir", str(tmp_path)]
    shell = ["/bin/sh", "-c", 'exec "$@" >&-', "sh"]
    ended = subprocess.run([*shell, *command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
