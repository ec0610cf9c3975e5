"""A script that is run before its reply is wanted: the server works while this process does, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
from redis.exceptions import RedisError, ResponseError

from poimen_tasks.store.direct import pack
from poimen_tasks.store.loader import load_script

if TYPE_CHECKING:
    from poimen_tasks.store.client import Client

__all__ = ["Ahead"]


class Ahead:
    """One request at a time, over a connection of its own; for one thread, and for scripts that change nothing.

    A reply may be missed: whoever wants it then asks in the ordinary way, and meets there whatever went wrong.

    Args:
        client: says where to and how to connect.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection: Any = None
        self._asked: tuple[str, dict[str, Any]] | None = None

    def ask(self, name: str, request: dict[str, Any]) -> None:
        """Send a request; one whose reply was not taken is forgotten."""
        self.drop()
        pool = self._client.redis.connection_pool
        try:
            if self._connection is None:
                self._connection = pool.connection_class(**pool.connection_kwargs)
            self._connection.send_packed_command((self._command(name, request),), check_health=False)
            self._asked = (name, request)
        except RedisError:
            self._connection.disconnect()

    def _command(self, name: str, request: dict[str, Any]) -> bytes:
        keys, body = self._client.keys, msgpack.packb(request, use_bin_type=False)
        sha, layout = load_script(name).sha.encode(), keys.build("layout").encode()
        return pack(b"EVALSHA", sha, b"1", layout, keys.root.encode(), b"ahead", b"1", body)

    def take(self, name: str, request: dict[str, Any]) -> Any:
        """The reply to the last request, if it is this one; None: there is none of use."""
        if self._asked != (name, request):
            self.drop()
            return None
        reply = None
        try:
            reply = self._connection.read_response()
            self._asked = None
        except ResponseError:
            self._asked = None
        except RedisError:
            self.drop()
        except BaseException:  # what may still come is never taken for the answer to something else
            self.drop()
            raise
        return None if reply is None else msgpack.unpackb(reply, raw=True, strict_map_key=False)

    def drop(self) -> None:
        """Forget what was asked for."""
        if self._asked is not None:
            self.close()

    def close(self) -> None:
        """Forget it, and connect anew at the next question: it may be another server by then."""
        self._asked = None
        if self._connection is not None:
            self._connection.disconnect()
