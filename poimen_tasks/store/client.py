"""The connection to Redis: opened when first used, errors in our own words, replies retried by us alone.

The client library's own retries are off: a retry must carry the same owner and sequence, and must end at a deadline
that the caller chose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import msgpack
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    OutOfMemoryError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from poimen_tasks.errors import StoreRefused, StoreUnavailable
from poimen_tasks.settings import Settings, mask_url
from poimen_tasks.store.direct import Direct, pack_parts
from poimen_tasks.store.keys import Keys
from poimen_tasks.store.loader import Script, load_all, load_script
from poimen_tasks.store.refusals import is_passing, is_refusal, translate
from poimen_tasks.store.wrong_type import find_wrong_type, is_wrong_type

__all__ = ["Client", "Prepared"]


class Prepared(NamedTuple):
    """How a call of a script begins: which one, how many parts that are, and the parts as they are sent."""

    script: Script
    parts: int
    head: bytes


class ServerClock:
    """The server's time, carried on for a while by this process's monotonic clock: it saves a round trip.

    Each answer of the server that carries its time sets it anew.
    """

    _TRUST = 30.0

    def __init__(self) -> None:
        self._at = float("-inf")
        self._server = 0.0

    def set(self, server: float) -> None:
        """The server said what time it is, in seconds since 1970."""
        self._at, self._server = time.monotonic(), server

    def get(self) -> float | None:
        """The server's time now; None when it was not heard of lately."""
        passed = time.monotonic() - self._at
        return self._server + passed if passed < self._TRUST else None


class Client:
    """One Redis server, spoken to through scripts and plain reads."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self.clock = ServerClock()
        self._layout = self.keys.build("layout")
        self.redis: Redis = Redis.from_url(
            url,
            protocol=2,
            socket_timeout=settings.socket_timeout,
            # Below half, so that a second attempt at a server that swallows connections still ends in time.
            socket_connect_timeout=0.48 * settings.connect_timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        self._direct = Direct(self.redis.connection_pool)

    def warm_up(self) -> None:
        """Open a connection and read the scripts, so that the first call need not.

        Raises:
            StoreUnavailable: no answer at the first attempt.
        """
        load_all()
        self.read(lambda redis: redis.ping(), patience=0)

    def close(self) -> None:
        """Close every connection; the next use opens new ones."""
        self._direct.close()
        self.redis.close()
        self.redis.connection_pool.disconnect()

    def read(
        self,
        call: Callable[[Any], Any],
        *,
        patience: float | None = None,
        wait_out: bool = False,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Run a command that changes nothing, again while the server does not answer, for `patience` seconds.

        With `wait_out` also while it answers that it takes no writes for now, as between a failover and its end. Asked
        after each attempt, `give_up` ends it sooner.
        """
        deadline = time.monotonic() + (self.settings.connect_timeout if patience is None else patience)
        pause = 0.05
        while True:
            began = time.monotonic()
            try:
                return call(self.redis)
            except AuthenticationError as error:
                self._refused(error)
            except (RedisConnectionError, RedisTimeoutError) as error:
                # No attempt is begun that, as long as the last one, would end too late.
                now = time.monotonic()
                if now + pause + (now - began) > deadline or give_up():
                    self._unavailable(error)
            except ResponseError as error:
                if not wait_out or not is_passing(error) or time.monotonic() + pause > deadline or give_up():
                    self._refused(error)
                self.redis.connection_pool.disconnect()  # the name may lead to another server by now
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def call(
        self,
        name: str,
        request: dict[str, Any],
        *,
        owner: str,
        sequence: int,
        payloads: tuple[bytes, ...] = (),
        patience: float | None = None,
        wait_out: bool = False,
        give_up: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Run a script; a lost reply is asked for again under the same owner and sequence.

        Raises:
            StoreUnavailable: no answer within `patience` seconds (default: the connect timeout).
            StoreRefused: the server refuses writes.
            PoimenError: the script's own refusal, as one of our errors.
        """
        script = load_script(name)
        packed = msgpack.packb(request, use_bin_type=False)  # the server's Lua library reads no bin type
        arguments = (self._layout, self.keys.root, owner, sequence, packed, *payloads)
        reply = self.read(
            lambda redis: self._evaluate(redis, script, arguments),
            patience=patience,
            wait_out=wait_out,
            give_up=give_up,
        )
        return msgpack.unpackb(reply, raw=True, strict_map_key=False)

    def lean(self, name: str, *arguments: bytes | str) -> bytes | None:
        """Run a script that keeps no reply and takes its arguments as they are.

        Raises:
            StoreUnavailable: no answer within the connect timeout.
            StoreRefused: the server refuses writes.
        """
        script = load_script(name)
        key = self._layout

        def run(redis: Any) -> Any:
            try:
                return redis.evalsha(script.sha, 1, key, self.keys.root, *arguments)
            except NoScriptError:
                redis.script_load(script.source)
                return redis.evalsha(script.sha, 1, key, self.keys.root, *arguments)

        value: bytes | None = self.read(run)
        return value

    def prepare(self, name: str, *arguments: str) -> Prepared:
        """The beginning of a call of a script, with the arguments that are always the same."""
        script = load_script(name)
        parts = ("EVALSHA", script.sha, "1", self._layout, *arguments)
        return Prepared(script, len(parts), pack_parts(*(part.encode() for part in parts)))

    def direct(
        self, prepared: Prepared, count: int, arguments: bytes, meanwhile: Callable[[], None] | None = None
    ) -> bytes:
        """Run such a script over this thread's own connection, which is faster still.

        Args:
            prepared: how the call begins.
            count: how many arguments come behind that.
            arguments: they, packed.
            meanwhile: called when they are sent, before the reply is read, once an attempt; it sends nothing itself.

        Raises:
            StoreUnavailable: no answer within the connect timeout.
            StoreRefused: the server refuses writes.
        """
        script, parts, head = prepared
        command = b"*%d\r\n%b%b" % (parts + count, head, arguments)

        def run(redis: Any) -> Any:
            try:
                return self._direct.send(command, meanwhile)
            except NoScriptError:
                redis.script_load(script.source)
                return self._direct.send(command, meanwhile)

        return bytes(self.read(run))

    @staticmethod
    def _evaluate(redis: Any, script: Script, arguments: tuple[Any, ...]) -> bytes:
        try:
            return bytes(redis.evalsha(script.sha, 1, *arguments))
        except NoScriptError:
            redis.script_load(script.source)
            return bytes(redis.evalsha(script.sha, 1, *arguments))

    def _unavailable(self, error: Exception) -> NoReturn:
        raise StoreUnavailable(
            f"Redis at {mask_url(self.url)} does not answer ({type(error).__name__}: {str(error)[:200]}): "
            "start it, or set POIMEN_REDIS_URL to one that runs"
        ) from error

    def _refused(self, error: AuthenticationError | ResponseError) -> NoReturn:
        text = str(error)
        if text.startswith("POIMEN_"):
            code, _, detail = text.partition(" ")
            raise translate(code.removeprefix("POIMEN_"), detail) from None
        if isinstance(error, OutOfMemoryError) or text.startswith("OOM"):
            raise StoreRefused(
                f"Redis at {mask_url(self.url)} is out of memory and takes no new work: {text[:200]}"
            ) from error
        if is_refusal(error):
            raise StoreRefused(f"Redis at {mask_url(self.url)} refuses the command: {text[:200]}") from error
        if is_wrong_type(text):
            what = (
                find_wrong_type(self.redis, self.keys) or f"a key of {self.keys.root} is of another type: {text[:200]}"
            )
            raise StoreRefused(f"Redis at {mask_url(self.url)}: {what}") from error
        raise error
