"""A connection of each thread's own, for what is sent all the time.

Taking a connection from redis-py's pool, and giving it back, costs about as much as the command itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from poimen_tasks.store.callers import Idle

if TYPE_CHECKING:
    from redis import ConnectionPool

__all__ = ["Direct", "pack", "pack_parts"]


def pack(*parts: bytes) -> bytes:
    """A command as the server's protocol (RESP) has it: an array of bulk strings."""
    return b"*%d\r\n%b" % (len(parts), pack_parts(*parts))


def pack_parts(*parts: bytes) -> bytes:
    """Some parts of a command, as they stand in it."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class Direct:
    """Sends commands over connections made as those of a pool are, one a thread, kept until the thread ends.

    A connection that failed in any way, an interruption between question and answer too, is closed and not used again,
    and what sends amid question and answer, as a signal handler may, gets another one: no answer is taken for that to
    something else.

    Args:
        pool: says where to and how to connect.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._mine = Idle()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()

    def send(self, command: bytes, meanwhile: Callable[[], None] | None = None) -> Any:
        """Send a packed command and return its reply.

        Args:
            command: see `pack`.
            meanwhile: called while the server is at work, and not at all if the command could not be sent; it sends
                nothing itself.

        Raises:
            RedisError: as redis-py does, also where the server had closed the connection meanwhile: send again.
        """
        connection = self._take()
        try:
            connection.send_packed_command((command,), check_health=False)
            if meanwhile is not None:
                meanwhile()
            reply = connection.read_response()
        except ResponseError:
            self._mine.all.append(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._mine.all.append(connection)
        return reply

    def _take(self) -> Any:
        """A connection that this thread does not use just now."""
        try:
            connection: Any = self._mine.all.pop()
        except IndexError:
            pass
        else:
            if connection.pid == os.getpid():  # a forked child has its parent's, which is not to be used
                return connection
        connection = self._pool.connection_class(**self._pool.connection_kwargs)
        self._all.add(connection)
        return connection

    def close(self) -> None:
        """Close all connections; one that is needed again is opened again."""
        for connection in list(self._all):
            connection.disconnect()
