"""Names in the environment that look like settings and are none: a misspelt setting is passed over without a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.settings import Settings

__all__ = ["check_environment"]

_PREFIX = "POIMEN_"
_OF_COMMANDS = ("APP",)


def check_environment(names: Iterable[str]) -> Iterator[Finding]:
    """A warning for each unknown name that begins with `POIMEN_`.

    Args:
        names: those of the environment; upper and lower case are the same, as for settings.
    """
    known = [*map(str.upper, Settings.model_fields), *_OF_COMMANDS]
    ours = sorted(name for name in names if name.upper().startswith(_PREFIX))
    unknown = [name for name in ours if name.upper().removeprefix(_PREFIX) not in known]
    for name in unknown:
        near = difflib.get_close_matches(name.upper().removeprefix(_PREFIX), known, n=1)
        advice = f"did you mean {_PREFIX}{near[0]}?" if near else "unset it; docs/settings.md lists the settings"
        yield Finding(Level.WARNING, "environment", name, "no such setting, so it has no effect", advice)
    if not unknown:
        yield Finding(Level.OK, "environment", "settings", "every POIMEN_ name in the environment is a setting")
