"""The exception tree."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from poimen_tasks import errors

CLASSES = [value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, Exception)]


def drawn() -> dict[str, str | None]:
    """Class name → built-in base in brackets, as the module's docstring draws them."""
    lines = re.findall(r"[├└]── (\w+) +(?:\((\w+)\))?", errors.__doc__ or "")
    return {name: base or None for name, base in lines}


def test_all_is_exact() -> None:
    """`__all__` lists every exception of the module, sorted, and nothing else."""
    assert sorted(kind.__name__ for kind in CLASSES) == errors.__all__


@pytest.mark.parametrize("kind", CLASSES)
def test_one_base(kind: type[Exception]) -> None:
    """Every error is a `PoimenError`, so one `except` clause catches all."""
    assert issubclass(kind, errors.PoimenError)


def test_drawn_tree_names_every_class() -> None:
    """The tree in the docstring shows each class but the root once."""
    assert drawn().keys() == {kind.__name__ for kind in CLASSES} - {"PoimenError"}


def test_drawn_tree_tells_the_builtin_base() -> None:
    """A built-in class in brackets in the drawn tree is a base of the error, and no built-in base is left out."""
    for kind in CLASSES:
        own = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins" and base is not Exception]
        assert own == [drawn()[kind.__name__]] if own else drawn().get(kind.__name__) is None


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind not in {errors.BatchFailed, errors.DispatchAborted}])
def test_default_message_is_the_docstring(kind: type[errors.PoimenError]) -> None:
    """Raised without words, an error speaks the first line of its docstring."""
    assert str(kind()) == (kind.__doc__ or "").split("\n", 1)[0]
    assert str(kind("own words")) == "own words"


@pytest.mark.parametrize("kind", CLASSES)
def test_pickles(kind: type[errors.PoimenError]) -> None:
    """An error crosses a process pool with its text and what else it carries."""
    error = kind("text")
    vars(error)["batch_id"] = "b"
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(again), str(again), vars(again)) == (kind, "text", vars(error))


def test_batch_failed_carries_the_failures() -> None:
    """`BatchFailed` tells the batch, the count and the first errors (promise D3)."""
    error = errors.BatchFailed("2 of 3 failed", batch_id="b", failed=2, errors={"1": "ValueError: no"})
    assert (error.batch_id, error.failed, error.errors) == ("b", 2, {"1": "ValueError: no"})


def test_dispatch_aborted_carries_the_batch() -> None:
    """`DispatchAborted` carries the id of the batch that was cancelled (protocol 1)."""
    assert errors.DispatchAborted("bad slice", batch_id="b").batch_id == "b"


def test_too_large_is_a_serialization_error() -> None:
    """Whoever catches `SerializationError` catches the size limit too."""
    assert issubclass(errors.PayloadTooLarge, errors.SerializationError)


def test_no_name_hides_a_builtin() -> None:
    """No error is named like a built-in, so `import *` is harmless."""
    assert not set(errors.__all__) & set(dir(builtins))
