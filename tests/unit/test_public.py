"""The package's public names."""

from __future__ import annotations

import poimen_tasks
from poimen_tasks import errors


def test_all_is_exact():
    """`__all__` names what the package imports for its users, without a name twice, and the whole tree of errors."""
    ours = {name for name, value in vars(poimen_tasks).items() if getattr(value, "__module__", "").startswith("poimen")}
    assert ours | {"__version__"} == set(poimen_tasks.__all__)
    assert len(poimen_tasks.__all__) == len(set(poimen_tasks.__all__))
    assert set(errors.__all__) <= set(poimen_tasks.__all__)


def test_what_a_method_returns_is_public():
    """`Poimen.doctor()` returns findings, so that their class can be imported from the package."""
    assert poimen_tasks.Finding.__name__ in poimen_tasks.Poimen.doctor.__annotations__["return"]
