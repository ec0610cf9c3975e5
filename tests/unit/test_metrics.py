"""Metrics without a server: names, labels, addresses, the missing package, and the page that documents them."""

from __future__ import annotations

import ast
import re
import sys

import pytest
from click.testing import CliRunner

from poimen_tasks import InvalidArgument, MetricsUnavailable, PoimenError
from poimen_tasks.cli import main
from poimen_tasks.metrics import CATALOGUE, Address, PoimenCollector
from poimen_tasks.metrics.filling import MOST_NAMES, of_cache
from poimen_tasks.settings import Settings
from tests.conftest import ROOT

UNITS = ("_seconds", "_bytes", "_total", "_info")


# ------------------------------------------------------------------------------------------- names
def test_names_follow_the_conventions():
    """Names are ours, lower case, each once; what only grows ends in `_total`, and nothing else does."""
    names = [one.name for one in CATALOGUE]
    assert len(set(names)) == len(names)
    for one in CATALOGUE:
        assert re.fullmatch(r"poimen_[a-z_]+[a-z]", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total")
        assert (one.kind == "info") == one.name.endswith("_info")
        assert one.help.strip() == one.help != ""
        assert not one.help.endswith(".")


def test_labels_name_nothing_that_grows():
    """A label is a task, a queue, or a word of a set that is fixed (fault J09)."""
    fixed = {"check", "state", "status", "scope", "result", "reason", "version"}
    assert {label for one in CATALOGUE for label in one.labels} == fixed | {"activity", "queue"}


def test_the_page_is_the_code():
    """`docs/metrics.md` has each metric with its type, labels and meaning, in the same order."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `poimen_")
    ]
    shown = [row[:4] for row in rows]
    wanted = [
        [f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help] for one in CATALOGUE
    ]
    assert shown == wanted, "docs/metrics.md should have:\n" + "\n".join(f"| {' | '.join(row)} |" for row in wanted)
    told = set(re.findall(r"\bpoimen_[a-z_]+", page)) - {one.name for one in CATALOGUE}
    assert told <= {"poimen_tasks"}, "the page speaks of metrics that there are not"


def test_alerts_speak_of_metrics_that_there_are():
    """Each metric of `config/alerts.yml`, and each label that it is chosen by, is one of ours."""
    text = (ROOT / "config" / "alerts.yml").read_text(encoding="utf-8")
    chosen = re.findall(r"\b(poimen_[a-z_]+)(?:\{([a-z]+)=)?", text)
    labels = {one.name: one.labels for one in CATALOGUE}
    assert len(chosen) >= text.count("- alert:") > 0
    assert [
        (name, label) for name, label in chosen if name not in labels or (label and label not in labels[name])
    ] == []


def test_other():
    """A task beyond the first hundred, and one that is called so, count under `other`; nothing is lost."""
    counts = {f"acts.n{number:03}": {"hits": 1} for number in range(MOST_NAMES + 5)} | {"other": {"hits": 7}}
    found = {labels[0]: value for name, labels, value in of_cache(counts, Settings()) if labels[1:] == ("hit",)}
    assert len(found) == MOST_NAMES + 1
    assert (found["other"], sum(found.values())) == (12, 112)


# ------------------------------------------------------------------------------------------- the package
def test_the_package_is_imported_late():
    """No module imports prometheus_client when it is imported itself: without the extra all commands work."""
    for path in (ROOT / "poimen_tasks" / "metrics").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [
            name for node in tree.body if isinstance(node, ast.Import) for name in (one.name for one in node.names)
        ]
        names += [str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom)]
        assert [name for name in names if name.startswith("prometheus_client")] == [], path.name


def test_without_the_package(monkeypatch):
    """Without prometheus_client there is one error of ours, which says what to install; the rest works without it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MetricsUnavailable, match=r"pip install 'poimen-tasks\[metrics\]'") as found:
        PoimenCollector(None)
    assert isinstance(found.value, PoimenError)
    assert isinstance(found.value, ImportError)
    monkeypatch.setenv("POIMEN_REDIS_URL", "redis://127.0.0.1:1/0")
    result = CliRunner().invoke(main, ["metrics"], prog_name="poimen")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: metrics need the package prometheus_client: pip install")


# ------------------------------------------------------------------------------------------- where to listen
@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:9808", "127.0.0.1", 9808, True), ("127.8.9.1:0", "127.8.9.1", 0, True),
        ("[::1]:65535", "::1", 65535, True), ("localhost:1", "localhost", 1, True),
        ("0.0.0.0:9808", "0.0.0.0", 9808, False),  # noqa: S104 - what is refused
        ("[::]:9808", "::", 9808, False),
        ("10.0.0.7:9808", "10.0.0.7", 9808, False), ("metrics.example:9808", "metrics.example", 9808, False),
        ("127.0.0.1.example:9808", "127.0.0.1.example", 9808, False),
        ("localhost.example:9808", "localhost.example", 9808, False),
        ("[::ffff:10.0.0.7]:9808", "::ffff:10.0.0.7", 9808, False),
    ],
)  # fmt: skip
def test_addresses(text, host, port, loopback):
    """Host and port, and whether only this machine reaches it; of a name that is not known."""
    address = Address.parse(text)
    assert (address, address.is_loopback, str(address)) == ((host, port), loopback, text)


BAD = [
    "9808", "127.0.0.1", ":9808", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "127.0.0.1:65536", "127.0.0.1:\u0663",
    "::1:9808", "[127.0.0.1]:1", "[::1]", "[::g]:1", "a b:1", "http://127.0.0.1:1", "127.0.0.1:1/metrics", "*:9808",
    "127.0.0.1:000080", "a..b:1", ".:1", f"{'x' * 64}.example:1",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_no_addresses(text):
    """Anything else is refused, with what is allowed and what came."""
    with pytest.raises(
        InvalidArgument, match=re.escape("expected HOST:PORT, as 127.0.0.1:9808 or [::1]:9808")
    ) as found:
        Address.parse(text)
    assert repr(text) in str(found.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "9808"], "expected HOST:PORT"),
        (["--listen", ""], "it is empty"),
        (["--listen", "0.0.0.0:9808"], "other machines reach 0.0.0.0:9808"),
        (["--listen", "[::]:9808"], "other machines reach [::]:9808"),
        (["--listen", "somewhere.example:9808"], "give --public if that is meant"),
        (["--public"], "give --listen too"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_bad_input(words, said, monkeypatch):
    """What the command does not take is one line and exit code 2, before anything is read or listened on."""
    monkeypatch.delenv("POIMEN_REDIS_URL", raising=False)
    result = CliRunner().invoke(main, ["metrics", *words], prog_name="poimen")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_no_redis(monkeypatch, tmp_path):
    """Without a Redis the error says which variable to set."""
    for name in ("POIMEN_REDIS_URL", "POIMEN_BROKER_URL", "POIMEN_APP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["metrics", "--dir", str(tmp_path / "none"), "--json"], prog_name="poimen")
    assert result.exit_code == 1
    assert "POIMEN_REDIS_URL" in result.stderr
