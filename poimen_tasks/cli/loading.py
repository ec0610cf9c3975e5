"""Finds the app that a command works on, and the server that `poimen up` started beside it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from celery import Celery
from celery.app.utils import find_app

from poimen_tasks.app import Poimen
from poimen_tasks.cli.output import APP, Failure, one_line
from poimen_tasks.dispatch.publish import LANE_TASK
from poimen_tasks.settings import Settings, load_settings, resolve_redis_url
from poimen_tasks.store import Store
from poimen_tasks.store.directory_lock import running_url

__all__ = [
    "app_options",
    "celery_name",
    "find_server",
    "load",
    "load_store",
    "load_tasks",
    "load_without_server",
    "load_without_tasks",
    "require_app",
]

_REDIS = "POIMEN_REDIS_URL"
_DATA = "POIMEN_DATA_DIR"
_EXAMPLE = "poimen = Poimen(app)"

F = TypeVar("F", bound=Callable[..., Any])


def _given(ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """The app stands behind the command, or before it: `poimen -A shop status`; else in the environment."""
    ctx.meta[APP] = value or ctx.meta.get(APP) or os.environ.get("POIMEN_APP") or None
    return ctx.meta[APP]  # type: ignore[no-any-return]


def app_options(command: F) -> F:
    """The options `app` and `directory`, which every command about an app has."""
    app = click.option(
        "-A", "--app", metavar="MODULE[:NAME]", callback=_given,
        help="Where your Poimen, or its Celery app, is. Default: POIMEN_APP.",
    )  # fmt: skip
    directory = click.option(
        "--dir", "directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
        help="The data directory of `poimen up`, whose server is used while POIMEN_REDIS_URL is not set. "
        "Default: POIMEN_DATA_DIR, or .poimen.",
    )  # fmt: skip
    return app(directory(command))


def require_app(app: str | None) -> str:
    """The app's place.

    Raises:
        UsageError: none was given.
    """
    if app is None:
        raise click.UsageError("which app? Give the module that holds your Poimen, as -A shop, or set POIMEN_APP")
    return app


def data_dir(directory: Path | None) -> Path:
    """The data directory; one that is given becomes the setting of this process and those it starts."""
    if directory is not None:
        os.environ[_DATA] = str(directory)
    return Path(Settings().data_dir)


def find_server(directory: Path | None) -> None:
    """Use the server that `poimen up` runs in the data directory, unless POIMEN_REDIS_URL names one.

    It becomes the setting before the app's module is imported, since an app reads its settings when it is made.
    """
    place = data_dir(directory)
    if not os.environ.get(_REDIS) and "://" in (url := running_url(place) or ""):
        os.environ[_REDIS] = url


def load(app: str | None, directory: Path | None) -> Poimen:
    """Import the app, with the server found first.

    Raises:
        UsageError: no app was given.
        Failure: its module cannot be imported or holds no Poimen.
        SettingsError: no Redis is known.
    """
    poimen = load_without_server(app, directory)
    _ = poimen.redis_url
    return poimen


def load_store(app: str | None, directory: Path | None) -> Store:
    """A store for commands that need no tasks: with the app's settings, or without an app with the environment's.

    Raises:
        Failure: the app's module cannot be imported or holds no Poimen.
        SettingsError: no Redis is known, or a setting of the environment has a wrong value.
    """
    if app is not None:
        return load(app, directory).store
    find_server(directory)
    settings = load_settings()
    store = Store(settings, resolve_redis_url(settings))
    click.get_current_context().call_on_close(store.client.close)
    return store


def load_without_server(app: str | None, directory: Path | None) -> Poimen:
    """The same, though perhaps no Redis is known.

    Raises:
        UsageError: no app was given.
        Failure: its module cannot be imported or holds no Poimen.
    """
    place = require_app(app)
    find_server(directory)
    return _find(place)


def load_without_tasks(app: str | None, directory: Path | None) -> Poimen:
    """For commands that need no task and send no message; perhaps no Redis is known.

    Without an app the settings are those of the environment.

    Raises:
        Failure: the app's module cannot be imported or holds no Poimen.
    """
    if app is not None:
        return load_without_server(app, directory)
    find_server(directory)
    poimen = Poimen("poimen", settings=load_settings())
    click.get_current_context().call_on_close(poimen.close)
    return poimen


def load_tasks(poimen: Poimen) -> None:
    """Import the modules that workers import by themselves (`include`, `imports`, autodiscovery): they hold tasks.

    Raises:
        Failure: one of them cannot be imported.
    """
    try:
        poimen.celery.loader.import_default_modules()
    except (Exception, SystemExit) as error:  # the modules are the user's: anything may happen in them
        raise _import_failed("the app's task modules", error) from error


def celery_name(app: str, poimen: Poimen) -> str:
    """What `celery -A` takes for this app.

    Raises:
        Failure: the module does not hold the Celery app.
    """
    try:
        if find_app(app) is poimen.celery:
            return app
    except Exception:  # noqa: BLE001, S110 - whatever it does not find, the module may still hold
        pass
    module = app.partition(":")[0]
    for name, value in vars(sys.modules[module]).items() if module in sys.modules else ():
        if value is poimen.celery:
            return f"{module}:{name}"
    raise Failure(
        f"module {module!r} holds a Poimen but not its Celery app, which workers and Flower look for: "
        "add `app = poimen.celery` to it"
    )


def _find(app: str) -> Poimen:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as Celery does: a script's own directory stands there otherwise
    name, colon, attribute = app.partition(":")
    if not name or (colon and not attribute):
        raise Failure(f"-A: expected MODULE or MODULE:NAME, as shop or shop:poimen, got {app!r}")
    if not attribute:
        return _in_module(_import(name))
    module = _import(name)
    try:
        value: Any = module
        for part in attribute.split("."):
            value = getattr(value, part)
    except AttributeError:
        found = ", ".join(sorted(set(_named(module, (Poimen, Celery))))) or "no Poimen and no Celery app"
        raise Failure(f"module {name!r} has no attribute {attribute!r}; it holds {found}") from None
    if issubclass(type(value), Poimen):
        return value  # type: ignore[no-any-return]
    if issubclass(type(value), Celery):
        return _made_for(value, app)
    raise Failure(f"{app} is a {type(value).__name__}; expected a Poimen, or the Celery app that one was made for")


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _import_failed(name, error) from error
        hint = "run in the directory that holds it, or set PYTHONPATH"
        if name.endswith(".py"):
            hint = f"give the module's name, as -A {name[:-3]}"
        raise Failure(f"no module named {name!r} in {Path.cwd()} or on the path; {hint}") from error
    except (Exception, SystemExit) as error:  # the module is the user's: anything may happen in it
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> Failure:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return Failure(f"importing {name!r} raised {type(error).__name__}: {one_line(str(error))}{place}")


def _in_module(module: ModuleType) -> Poimen:
    found = _named(module, (Poimen,))
    if len(found) > 1:
        names = " or ".join(f"-A {module.__name__}:{name}" for name in found)
        raise Failure(f"module {module.__name__!r} holds several Poimens; say which: {names}")
    for value in found.values():
        return value  # type: ignore[no-any-return]
    for value in _named(module, (Celery,)).values():
        return _made_for(value, module.__name__)
    if hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.celery"):
        return _in_module(_import(f"{module.__name__}.celery"))
    raise Failure(f"module {module.__name__!r} holds no Poimen and no Celery app: add `{_EXAMPLE}` to it")


def _named(module: ModuleType, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The module's attributes of these classes, each object once. `type`, since proxies lie about their class."""
    seen: dict[int, str] = {}
    for name, value in list(vars(module).items()):
        if issubclass(type(value), kinds):
            seen.setdefault(id(value), name)
    return {name: vars(module)[name] for name in seen.values()}


def _made_for(celery: Celery, app: str) -> Poimen:
    """The Poimen of a Celery app; it may be in another module, also one that only workers import by themselves."""
    for poimen in _everywhere():
        if poimen.celery is celery:
            return poimen
    celery.loader.import_default_modules()
    for poimen in _everywhere():
        if poimen.celery is celery:
            return poimen
    if LANE_TASK in celery.tasks:
        raise Failure(f"the Poimen of the Celery app in {app!r} is in no module: keep it in one, as `{_EXAMPLE}`")
    raise Failure(f"{app!r} holds a Celery app for which no Poimen was made: add `{_EXAMPLE}` beside it")


def _everywhere() -> Iterator[Poimen]:
    for module in list(sys.modules.values()):
        if type(module) is ModuleType:
            yield from _named(module, (Poimen,)).values()
