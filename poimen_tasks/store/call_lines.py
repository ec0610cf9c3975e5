"""Connections on which a reply may be left to be read later: the end of a plain call costs its worker one write.

They are this package's own, beside the client's pool: closing that one leaves unread replies unread. A connection is
one caller's while he holds it, so that threads and greenlets need no lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from poimen_tasks.store.loader import Script

__all__ = ["CallLines"]

_MOST_OWED = 1000


class _Line:
    """One connection, and the fields whose removal it was asked for without waiting for the reply."""

    __slots__ = ("connection", "owed")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.owed: deque[str] = deque()


class CallLines:
    """The connections of one process.

    Args:
        connect: makes a connection of the client library.
        key: the hash whose fields are removed.
    """

    def __init__(self, connect: Callable[[], Any], key: str) -> None:
        self._connect = connect
        self._key = key
        self._free: deque[_Line] = deque()
        self._unsent: deque[str] = deque(maxlen=_MOST_OWED)

    def ask(self, script: Script, *arguments: str) -> bytes:
        """Run a script that may safely run twice, and read what was left to be read.

        Raises:
            RedisError: no answer, or a refusal; the connection is closed, and what it owed is sent again later.
        """
        line = self._take()
        try:
            answer = self._asked(line, script, arguments)
        except BaseException:
            self._drop(line)
            raise
        self._free.append(line)
        return answer

    def remove(self, field: str) -> None:
        """Remove a field, without waiting for the reply. Never raises for a server that is away."""
        try:
            line = self._free.pop()
        except IndexError:
            self._unsent.append(field)  # with the next call: to wait for a connection here is not worth it
            return
        line.owed.append(field)
        try:
            line.connection.send_command("HDEL", self._key, field)
        except (OSError, RedisError):
            self._drop(line)
            return
        except BaseException:  # a time limit that strikes here may have left half a command
            self._drop(line)
            raise
        self._free.append(line)

    def close(self) -> None:
        """Close all that nobody holds."""
        while self._free:
            self._free.pop().connection.disconnect()

    def _take(self) -> _Line:
        try:
            return self._free.pop()
        except IndexError:
            return _Line(self._connect())

    def _drop(self, line: _Line) -> None:
        self._unsent.extend(line.owed)
        line.connection.disconnect()

    def _asked(self, line: _Line, script: Script, arguments: tuple[str, ...]) -> bytes:
        connection = line.connection
        while self._unsent:
            field = self._unsent.popleft()
            line.owed.append(field)
            connection.send_command("HDEL", self._key, field)
        connection.send_command("EVALSHA", script.sha, 1, *arguments)
        while line.owed:
            self._read_owed(line)
        try:
            return bytes(connection.read_response())
        except NoScriptError:
            connection.send_command("EVAL", script.source, 1, *arguments)
            return bytes(connection.read_response())

    @staticmethod
    def _read_owed(line: _Line) -> None:
        with suppress(ResponseError):  # a server that takes no writes for now: that call's lease ends by itself
            line.connection.read_response()
        line.owed.popleft()
