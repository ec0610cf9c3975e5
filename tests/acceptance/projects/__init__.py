"""Whole projects that the acceptance tests run as a user would, each with its own place on the path."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from celery import _state

from tests.conftest import ROOT

HERE = Path(__file__).resolve().parent


def path_to(directory: Path) -> str:
    """PYTHONPATH of a process that runs what lies there."""
    return os.pathsep.join((str(directory), str(ROOT)))


def _take_out(directory: Path) -> dict[str, ModuleType]:
    """Forget the modules that were imported from there; gives them back."""
    names = [
        name
        for name, module in sys.modules.items()
        if (getattr(module, "__file__", None) or "").startswith(f"{directory}{os.sep}") and module is not _THIS
    ]
    return {name: sys.modules.pop(name) for name in names}


_THIS = sys.modules[__name__]


@contextlib.contextmanager
def project(name: str, env: Mapping[str, str], directory: Path = HERE) -> Iterator[ModuleType]:
    """Import a project's module anew; afterwards nothing of it is left in this process, its shared tasks included."""
    before, shared = _take_out(directory), set(_state._on_app_finalizers)
    current, default = _state._tls.current_app, _state.default_app
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        for key, value in env.items():
            patch.setenv(key, value)
        try:
            yield importlib.import_module(name)
        finally:
            _take_out(directory)
            sys.modules.update(before)
            _state._on_app_finalizers.intersection_update(shared)
            _state._tls.current_app, _state.default_app = current, default
