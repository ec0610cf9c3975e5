"""`poimen cache` against a real server: what is cached is shown, looked up and called back."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from poimen_tasks import CacheKey, Poimen
from poimen_tasks.cli import main

KEY = CacheKey("shop.price", "", "ab" * 32, "gpt")
Run = Callable[..., Result]


@pytest.fixture
def app(redis_url: str, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with a Poimen in whose cache one result lies."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.syspath_prepend(tmp_path)
    name = f"shop_{secrets.token_hex(4)}"
    how = f"Poimen('shop', redis_url={redis_url!r}, namespace={namespace!r})"
    (tmp_path / f"{name}.py").write_text(f"from poimen_tasks import Poimen\npoimen = {how}\n")
    poimen = Poimen("filler", redis_url=redis_url, namespace=namespace)
    poimen.cache.put(KEY, {"cents": 7}, tags=["red"])
    yield name
    poimen.close()


@pytest.fixture
def run(app: str) -> Run:
    """Run `poimen cache …` for that module."""

    def invoke(command: str, *words: str) -> Result:
        return CliRunner().invoke(main, ["cache", command, "-A", app, *words], prog_name="poimen")

    return invoke


def test_looking(run: Run) -> None:
    """`stats` counts, `top` lists, `get` shows a value; a miss is exit code 1 and names the key."""
    shown = json.loads(run("top", "--json").stdout)["entries"]
    assert [(entry["key"], entry["task_id"]) for entry in shown] == [(KEY.to_dict(), "")]
    assert KEY.input_hash in run("top").stdout
    found = run("get", KEY.activity, "--input-hash", KEY.input_hash, "--model-id", KEY.model_id, "--json")
    assert json.loads(found.stdout)["value"] == {"cents": 7}
    missed = run("get", KEY.activity, "--input-hash", KEY.input_hash)
    assert (missed.exit_code, "nothing is cached under" in missed.stderr) == (1, True)
    counted = json.loads(run("stats", "--json").stdout)
    assert (counted["size"], counted["hits"], counted["misses"]) == (1, 1, 1)


def test_calling_back(run: Run) -> None:
    """`invalidate` takes exactly one scope, and says how many results it called back."""
    assert run("invalidate").exit_code == 2
    assert json.loads(run("invalidate", "--tag", "blue", "--json").stdout) == {"invalidated": 0}
    assert json.loads(run("invalidate", "--tag", "red", "--json").stdout) == {"invalidated": 1}


def test_clearing_asks_people_only(run: Run) -> None:
    """`clear` asks first; with `--json` there is nobody to ask, so `--yes` has to be given."""
    assert run("clear").exit_code == 1
    refused = run("clear", "--json")
    assert (refused.exit_code, "give --yes too" in refused.stderr) == (2, True)
    assert json.loads(run("clear", "--json", "--yes").stdout) == {"invalidated": 1}
