"""Builds each Lua script from its file.

`--@include name` pastes an include once, `--@keys` the key builders, `--@sound` a look at the types of the keys.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import NamedTuple

from poimen_tasks.store.keys import lua_builders, lua_probes

__all__ = ["Script", "ScriptError", "load_all", "load_script", "script_names"]

_MARK = "--@include "
_INCLUDE = re.compile(r"--@include (\w+)\s*$")
_SOUND = "\n--@sound\n"
_LUA = files("poimen_tasks.store") / "lua"


class ScriptError(RuntimeError):
    """A script or include is missing, or includes form a circle: a fault of the package itself."""


class Script(NamedTuple):
    """A script ready to be sent; `sha` is what EVALSHA takes."""

    name: str
    source: str
    sha: str


@cache
def _read(path: str) -> tuple[str, ...]:
    """The lines of a file; an include stands in most scripts, and is read once."""
    try:
        return tuple((_LUA / path).read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        raise ScriptError(f"Lua source {path!r} is missing") from None


def _expand(path: str, done: set[str], open_: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    for line in _read(path):
        if line.startswith(_MARK) and (found := _INCLUDE.match(line)):
            name = found[1]
            if name in open_:
                raise ScriptError(f"Lua includes form a circle: {' -> '.join((*open_, name))}")
            if name not in done:
                lines += _expand(f"include/{name}.lua", done, (*open_, name))
                done.add(name)
        else:
            lines.append(line)
    return lines


@cache
def load_script(name: str) -> Script:
    """The script called `name`, its includes pasted once each.

    Raises:
        ScriptError: it, or one of its includes, is missing or circular.
    """
    source = "\n".join(_expand(f"{name}.lua", set(), ())) + "\n"
    if _SOUND in source:
        source = source.replace(_SOUND, f"\n{lua_probes(source)}\n", 1)
    source = source.replace("\n--@keys\n", f"\n{lua_builders(source)}\n", 1)
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def load_all() -> None:
    """Load every script, so that no call need; some 40 ms, which a process that is forked later does not spend."""
    for name in script_names():
        load_script(name)


def script_names() -> list[str]:
    """Every verb that has a script."""
    return sorted(path.name.removesuffix(".lua") for path in _LUA.iterdir() if path.name.endswith(".lua"))
