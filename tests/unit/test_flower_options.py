"""How `poimen flower` reads its options, and what it refuses before anything listens."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from flower.options import default_options
from flower.urls import settings
from prometheus_client import generate_latest

from poimen_tasks.errors import InvalidArgument, SettingsError
from poimen_tasks.flower import FlowerOptions, hide_passwords, read_options, revealed
from poimen_tasks.flower.application import PoimenFlower
from poimen_tasks.flower.exposure import is_loopback
from poimen_tasks.flower.guard import Guard
from poimen_tasks.flower.passwords import mask_deep, mask_text


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A directory without a configuration of Flower's, and its options, which are the process's, as they were."""
    monkeypatch.chdir(tmp_path)
    before = {option: option._value for option in default_options._options.values()}
    for option in before:
        option._value = type(option).UNSET
    yield
    for option, value in before.items():
        option._value = value


def refused(*words: str, **options: Any) -> str:
    """What is said about them."""
    with pytest.raises(InvalidArgument) as caught:
        read_options(words, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------- who may reach it
def test_it_is_for_this_machine_by_default() -> None:
    """Loopback, read-only, nothing on disk, workers in peace, bounded memory (faults J01, J03, J04, J08, J09)."""
    found = read_options().flower
    assert (found.address, found.port, found.read_only, found.persistent) == ("127.0.0.1", 5555, True, False)
    assert (found.max_tasks, found.max_workers, found.purge_offline_workers) == (10_000, 1_000, 600)
    assert not found.enable_events


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "*", "192.0.2.1", "::ffff:192.0.2.1"])  # noqa: S104
def test_strangers_need_a_login(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others reach is refused without a login, with an open API too, and taken with one (fault J01)."""
    said = refused(given={"address": address})
    assert "loopback" in said
    assert "--basic-auth" in said
    monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
    assert "FLOWER_UNAUTHENTICATED_API" in refused(given={"address": address})
    assert read_options(given={"address": address, "basic_auth": ["ada:secret"]}).flower.basic_auth == ["ada:secret"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_none(address: str) -> None:
    """Every name of this machine's own loopback is one."""
    assert is_loopback(address)
    assert read_options(given={"address": address}).flower.address == address


def test_control_needs_a_login() -> None:
    """Without one nobody may steer workers, on loopback neither (fault J01)."""
    assert "--allow-control" in refused(control=True)
    found = read_options(given={"basic_auth": ["ada:secret"]}, control=True)
    assert found.control
    assert not found.flower.read_only


def test_logins_from_everywhere_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A login may stand in the environment or in Flower's configuration, and so may what needs one (fault J01)."""
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "ada:secret,bob:other")
    monkeypatch.setenv("FLOWER_ADDRESS", "0.0.0.0")  # noqa: S104
    assert read_options().flower.basic_auth == ["ada:secret", "bob:other"]
    monkeypatch.delenv("FLOWER_BASIC_AUTH")
    default_options._options["basic-auth"]._value = None
    assert "0.0.0.0" in refused()  # noqa: S104
    (tmp_path / "flowerconfig.py").write_text("basic_auth = ['ada:secret']\nport = 5556\n")
    found = read_options(["--port=5557"]).flower
    assert (found.basic_auth, found.port) == (["ada:secret"], 5557)


@pytest.mark.parametrize("words", [["--auth=.*@example.com"], ["--auth_provider=flower.views.auth.GithubLoginHandler"]])
def test_half_of_an_oauth(words: list[str]) -> None:
    """Addresses without a provider, and a provider without addresses, are refused, naming the other."""
    said = refused(*words)
    assert "--auth:" in said or "--auth too" in said


def test_oauth_is_a_login() -> None:
    """Whole, it lets Flower listen elsewhere; a pattern that would let other domains in does not (fault J02)."""
    provider = "--auth_provider=flower.views.auth.GithubLoginHandler"
    given = {"address": "0.0.0.0"}  # noqa: S104
    assert read_options(["--auth=.*@example.com", provider], given=given).flower.auth
    assert "one *" in refused("--auth=.*@.*", provider, given=given)


# ------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("words", "given", "parts"),
    [
        (["--prot=1"], {}, ["'--prot=1'", "no such option"]),
        (["extra"], {}, ["'extra'", "no such option"]),
        (["--max_tasks=many"], {}, ["--max_tasks", "int", "'many'"]),
        (["--max_tasks=0"], {}, ["--max_tasks", "from 1", "0"]),
        (["--purge_offline_workers=1"], {}, ["--purge_offline_workers", "from 10"]),
        (["--persistent=true"], {}, ["--persistent", "pickle"]),
        (["--read_only=false"], {}, ["--read_only", "--allow-control"]),
        (["--certfile=x.pem"], {}, ["--keyfile", "both"]),
        (["--broker_api=ftp://guest:hush@host/"], {}, ["--broker_api", "http"]),
        ([], {"address": "no..host"}, ["--address", "'no..host'"]),
        ([], {"port": 70_000}, ["--port", "65535", "70000"]),
        ([], {"url_prefix": "a(b"}, ["--url-prefix", "'a(b'"]),
        ([], {"url_prefix": "../a"}, ["--url-prefix", "'../a'"]),
        ([], {"basic_auth": ["ada"]}, ["--basic-auth", "USER:PASSWORD"]),
        ([], {"basic_auth": ["ada:hush", ":hush"]}, ["--basic-auth", "part 2 of 2"]),
    ],
)
def test_bad_options_are_named(words: list[str], given: dict[str, Any], parts: list[str]) -> None:
    """One line with the option, its value and what is allowed; but no password (fault K06 for the pickle)."""
    said = refused(*words, given=given)
    assert all(part in said for part in parts), said
    assert "hush" not in said


@pytest.mark.parametrize("host", ["http://flower.example", "flower.example:80", "", "a b"])
def test_bad_hosts_are_named(host: str) -> None:
    """A host is a name alone."""
    assert "--allow-host" in refused(hosts=[host])


def test_bad_variables_and_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable that is no number, and a configuration that raises, are one line each."""
    monkeypatch.setenv("FLOWER_PORT", "x")
    with pytest.raises(SettingsError, match="FLOWER_PORT: expected a value of type int, got 'x'"):
        read_options()
    monkeypatch.delenv("FLOWER_PORT")
    (tmp_path / "flowerconfig.py").write_text("1 / 0\n")
    with pytest.raises(SettingsError, match=r"flowerconfig\.py.*ZeroDivisionError"):
        read_options()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower is not installed the extra is named."""
    monkeypatch.setitem(sys.modules, "flower.options", None)
    with pytest.raises(SettingsError, match=r"poimen-tasks\[flower\]"):
        read_options()


# ------------------------------------------------------------------------------------------- the guard
def guard(*, control: bool = False, hosts: tuple[str, ...] = (), **changes: Any) -> Guard:
    """One for these options."""
    options = {"basic_auth": None, "auth": "", "unix_socket": "", "address": "127.0.0.1", "url_prefix": None, **changes}
    return Guard(FlowerOptions(flower=SimpleNamespace(**options), control=control, hosts=hosts))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "BREW", ""])
def test_only_reading_passes(method: str) -> None:
    """Whatever is no read is refused, of whatever route, unless controls are allowed (fault J01)."""
    assert "--allow-control" in guard().why_not(method, "/api/task/new-in-flower-9", "localhost")
    assert not guard(control=True).why_not(method, "/api/task/new-in-flower-9", "localhost")
    assert not guard().why_not("POST", "/tasks/datatable", "localhost")
    assert not guard(url_prefix="in/here").why_not("POST", "/in/here/tasks/datatable", "localhost")
    assert not guard().why_not("GET", "/workers", "localhost")


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:5555", "", "192.0.2.7:5555", "127.0.0.1.evil"]
)
def test_foreign_names_are_refused(host: str) -> None:
    """Another site that leads its name to this machine reads nothing through a visitor's browser (fault J01)."""
    assert "--allow-host" in guard().why_not("GET", "/", host)
    assert not guard(basic_auth=["ada:secret"]).why_not("GET", "/", host)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5555", "127.0.0.1:1", "[::1]:5555", "flower.example:80"])
def test_own_names_pass(host: str) -> None:
    """Names of the loopback address, and those that were allowed."""
    assert not guard(hosts=("flower.example",)).why_not("GET", "/", host)


# ------------------------------------------------------------------------------------------- passwords
def test_passwords_leave_the_command_line() -> None:
    """Whichever way they are written they are taken off it, and mean the same."""
    words = [
        "flower",
        "-A",
        "shop",
        "--basic-auth",
        "ada:one",
        "--basic_auth=bob:two",
        "--port",
        "1",
        "--oauth2_secret=x",
    ]
    assert hide_passwords(words) == (
        ["flower", "-A", "shop", "--port", "1"],
        {"basic_auth": ["ada:one", "bob:two"], "oauth2_secret": ["x"]},
    )
    several = {"basic_auth": ["ada:one,bob:two", "eve:three"], "oauth2_secret": ["x", "y"]}
    assert revealed(several) == {"basic_auth": ["ada:one", "bob:two", "eve:three"], "oauth2_secret": "y"}
    assert hide_passwords(["flower", "--basic-auth"]) == (["flower", "--basic-auth"], {})
    assert hide_passwords(["status", "--json"]) == (["status", "--json"], {})


def test_workers_answers_are_masked() -> None:
    """URLs with passwords are masked wherever they stand in what a worker tells of itself."""
    told = {"conf": {"poimen_redis_url": "redis://u:hush@h/0", "more": ["see redis://:hush@h now", 7, None]}}
    assert mask_deep(told) == {
        "conf": {"poimen_redis_url": "redis://u:***@h/0", "more": ["see redis://:***@h now", 7, None]}
    }
    assert mask_text("cannot reach redis://u:hush@h/0") == "cannot reach redis://u:***@h/0"
    assert len(mask_text("x" * 1_000)) == 300


# ------------------------------------------------------------------------------------------- workers that are gone
def test_workers_that_are_gone_are_forgotten() -> None:
    """With a worker its labels and counters go, and those of a living one stay (fault J09)."""
    now = time.time()

    def heartbeat(worker: str, ago: float) -> dict[str, Any]:
        times = {"timestamp": now - ago, "local_received": now - ago}
        return {"type": "worker-heartbeat", "hostname": worker, "clock": 1, "freq": 2.0, "active": 0, "pid": 7, **times}

    async def forget() -> None:
        system: Any = SimpleNamespace(celery=Celery("labels", set_as_current=False))
        application = PoimenFlower(system, read_options(), **settings)
        for worker, ago in (("living@host", 1), ("gone@host", 3_600)):
            application.events.state.event(heartbeat(worker, ago))
        application.inspector._on_update("gone@host", "stats", {"url": "redis://u:hush@h"})
        application.inspector.workers["gone@host"]["timestamp"] = now - 3_600
        assert application.workers["gone@host"]["stats"] == {"url": "redis://u:***@h"}
        assert b'"gone@host"' in generate_latest()
        application.forget_the_gone()
        assert b'"gone@host"' not in generate_latest()
        assert b'"living@host"' in generate_latest()
        assert list(application.events.state.counter) == ["living@host"]
        assert "gone@host" not in application.workers
        application.readings.close()

    asyncio.run(forget())


def test_a_log_level_that_there_is_not() -> None:
    """It is named with what is allowed, before Tornado looks for it among Python's."""
    assert refused("--logging=zzz") == "--logging: expected one of debug, info, warning, error, none, got 'zzz'"
