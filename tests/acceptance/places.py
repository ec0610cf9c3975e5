"""Places where work goes on: a server with its workers, lost as a whole; the data directory is elsewhere."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

from poimen_tasks.store.server import EmbeddedServer
from tests.acceptance.conftest import APP, imported
from tests.conftest import Worker, Workers

QUICK = ("--without-mingle", "--without-gossip")


class Place:
    """A server of its own, the shop on it in this process, and workers.

    Args:
        directory: the server's data and the workers' logs.
        data_dir: where snapshots are.
        env: settings on top.
    """

    def __init__(self, directory: Path, data_dir: Path, env: Mapping[str, str]) -> None:
        self.server = EmbeddedServer(directory / "server")
        self.data_dir = data_dir
        self._env = dict(env)
        self._directory = directory
        self._around = ExitStack()
        self.shop: ModuleType
        self.workers: Workers

    @property
    def env(self) -> dict[str, str]:
        """The settings of every process here."""
        return {
            "POIMEN_REDIS_URL": self.server.url,
            "POIMEN_BROKER_URL": self.server.url,
            "POIMEN_NAMESPACE": "place",
            "POIMEN_DATA_DIR": str(self.data_dir),
            "POIMEN_LEASE": "1.5",
            "POIMEN_TICK": "0.2",
            "POIMEN_TICKET_OVERDUE": "1.0",
            **self._env,
        }

    def open(self) -> Place:
        """Start the server, and import the shop."""
        self._around.enter_context(self.server)
        self.workers = Workers(self._directory, self.env)
        self._around.callback(self.workers.destroy_all)
        self.shop = self._around.enter_context(imported(self.env))
        return self

    def start(self, concurrency: int = 2, **options: object) -> Worker:
        """Start a worker."""
        return self.workers.start(APP, concurrency=concurrency, args=QUICK, **options)  # type: ignore[arg-type]

    def lose(self) -> None:
        """Kill everything here at once: workers, their children, the server."""
        self.server.kill()
        self.workers.destroy_all()
        self._around.close()


@contextmanager
def places(directory: Path, env: Mapping[str, str] | None = None) -> Iterator[Places]:
    """Make places; all are gone at the end."""
    made = Places(directory, env or {})
    try:
        yield made
    finally:
        made.close()


class Places:
    """Opens one place after another, all with one data directory."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self.data_dir = directory / "kept"
        self._directory = directory
        self._env = env
        self._opened: list[Place] = []

    def open(self, **env: str) -> Place:
        """A new one, empty."""
        directory = self._directory / f"place-{secrets.token_hex(4)}"
        directory.mkdir(parents=True)
        place = Place(directory, self.data_dir, {**self._env, **env})
        self._opened.append(place)
        return place.open()

    def close(self) -> None:
        """Lose them all."""
        while self._opened:
            self._opened.pop().lose()
