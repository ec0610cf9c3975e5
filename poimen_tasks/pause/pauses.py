"""`poimen.pauses`: pause, resume, ask, and wait for either."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

from poimen_tasks._checks import MOST_SECONDS, check_count, check_flag, check_number, words
from poimen_tasks.errors import InvalidArgument, NotPaused, PauseTimeout, StaleEpoch
from poimen_tasks.ids import check_actor, check_label
from poimen_tasks.pause.receipt import PauseReceipt
from poimen_tasks.pause.scope import Scope
from poimen_tasks.pause.state import HeldBack, PauseState, PauseStats
from poimen_tasks.pause.typed import PauseOptions, ResumeOptions, own_options
from poimen_tasks.store.ranges import expand_ranges

if TYPE_CHECKING:
    from poimen_tasks.pause.typed import OtherScopes, ScopeOptions
    from poimen_tasks.store import Store
    from poimen_tasks.store.pause_scripts import HeldReleased
    from poimen_tasks.store.values import Ticket, WaitingCall

__all__ = ["Pauses"]

_BLOCK = 60.0
#: An outage that a wait outlasts.
_OUTAGE = 60.0
_LEAST_RATE, _MOST_RATE = 1e-3, 1e9
#: What the verbs take besides the scope; `snapshot` is `Poimen.pause`'s.
_PAUSE, _RESUME = ("snapshot", *own_options(PauseOptions)), own_options(ResumeOptions)


class Pauses:
    """The pauses of one app. Every verb takes one scope: `workflow`, `batch`, `queue`, `activity` or `everything=True`.

    A verb speaks of exactly the scope that it is given; `batch.status().paused_by` has all that cover a batch.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        publish: Callable[[Sequence[Ticket]], None],
        publish_calls: Callable[[Sequence[WaitingCall]], None],
        *,
        forget: Callable[[str], int],
    ) -> None:
        self._store = store
        self._publish = publish
        self._publish_calls = publish_calls
        self._forget = forget
        self._seen: dict[Scope, str] = {}

    # -- steering --------------------------------------------------------------------------------------------------

    def pause(
        self,
        *,
        reason: str = "",
        actor: str | None = None,
        grace: float | None = None,
        terminate: bool = False,
        expires: float | None = None,
        request_id: str | None = None,
        **scope: Unpack[ScopeOptions],
    ) -> PauseReceipt:
        """See `Poimen.pause`."""
        found = Scope.among(scope, *_PAUSE)
        check_flag("terminate", terminate)
        if grace is not None:
            check_number("grace", grace, least=0, most=MOST_SECONDS)
        if expires is not None:
            check_number("expires", expires, least=1e-3, most=MOST_SECONDS)
        reply = self._store().pauses.pause_scope(
            found.text,
            reason=words(reason),
            actor=check_actor(actor),
            grace=0.0 if grace is None and terminate else grace,
            terminate=terminate,
            expires=expires,
            request_id="" if request_id is None else check_label(request_id, "request id"),
        )
        return PauseReceipt.of(self._store, found, reply)

    def resume(
        self,
        *,
        reason: str = "",
        actor: str | None = None,
        rate: float | None = None,
        epoch: int | None = None,
        request_id: str | None = None,
        **scope: Unpack[ScopeOptions],
    ) -> PauseState:
        """See `Poimen.resume`."""
        found = Scope.among(scope, *_RESUME)
        if rate is not None:
            check_number("rate", rate, least=_LEAST_RATE, most=_MOST_RATE)
        if epoch is not None:
            check_count("epoch", epoch)
        scripts = self._store().pauses
        try:
            reply = scripts.resume_scope(
                found.text,
                reason=words(reason),
                actor=check_actor(actor),
                rate=rate,
                epoch=epoch,
                request_id="" if request_id is None else check_label(request_id, "request id"),
            )
        except NotPaused:
            raise NotPaused(
                f"{found} is not paused; `pauses.all(paused=True)`, or `poimen pauses`, has what is"
            ) from None
        except StaleEpoch:
            raise StaleEpoch(
                f"{found} is not paused under epoch {epoch}; `pauses.state`, or `poimen pauses`, has the newer one"
            ) from None
        self._let_go(reply)
        while reply.left and reply.released:
            reply = scripts.release_held(found.text)
            self._let_go(reply)
        state = self._state(found)
        if state is None:
            raise NotPaused(f"{found} was reset while it was resumed")
        return state

    def _let_go(self, reply: HeldReleased) -> None:
        if reply.tickets:
            self._publish(reply.tickets)
        if reply.calls:
            self._publish_calls(reply.calls)

    def reset(self, workflow: str | None = None, *, actor: str | None = None, **scope: Unpack[OtherScopes]) -> bool:
        """Forget that a scope was ever paused. Returns whether there was anything to forget.

        Of a workflow also its snapshots, in this process's data directory.

        Raises:
            InvalidArgument: it is paused; resume it first.
        """
        found = Scope.among({"workflow": workflow, **scope}, "actor")
        try:
            known = self._store().pauses.reset_scope(found.text, actor=check_actor(actor))
        except InvalidArgument:
            raise InvalidArgument(f"{found} is paused: resume it first") from None
        self._seen.pop(found, None)
        return bool(self._forget(workflow)) or known if workflow is not None else known

    # -- asking ----------------------------------------------------------------------------------------------------

    def is_paused(self, workflow: str | None = None, **scope: Unpack[OtherScopes]) -> bool:
        """Whether exactly this scope is paused."""
        found = Scope.among({"workflow": workflow, **scope})
        self._note(found)
        return self._store().pause_reads.is_paused(found.text)

    def state(self, workflow: str | None = None, **scope: Unpack[OtherScopes]) -> PauseState | None:
        """The last pause of a scope; None for one that was never paused, or is forgotten."""
        found = Scope.among({"workflow": workflow, **scope})
        self._note(found)
        return self._state(found)

    def _state(self, scope: Scope) -> PauseState | None:
        fields = self._store().pause_reads.state(scope.text)
        return None if fields is None else PauseState.read(scope, fields)

    def all(self, *, paused: bool = False) -> list[PauseState]:
        """Every scope that has a state, those resumed last before those that are paused.

        Args:
            paused: only those that are paused now.
        """
        check_flag("paused", paused)
        reads, found = self._store().pause_reads, list[PauseState]()
        for scopes in reads.scopes(paused=paused):
            for text, fields in zip(scopes, reads.states(scopes), strict=True):
                if fields is not None:
                    found.append(PauseState.read(Scope.parse(text), fields))
        return found

    def stats(self) -> PauseStats:
        """Totals."""
        totals = self._store().pause_reads.totals()
        return PauseStats(
            total=totals.total,
            paused=totals.paused,
            resumed=max(0, totals.total - totals.paused),
            pauses=totals.pauses,
            resumes=totals.resumes,
        )

    def held(self, workflow: str | None = None, *, limit: int = 500, **scope: Unpack[OtherScopes]) -> HeldBack:
        """What a scope holds back: at most `limit` of it; `state(...).held` is how much there is.

        Work is noted when it could start but for the pause: a batch that has all it may run is not.
        """
        found = Scope.among({"workflow": workflow, **scope}, "limit")
        check_count("limit", limit)
        return HeldBack.of(self._store().pause_reads.held(found.text, most=limit))

    def running(self, workflow: str | None = None, **scope: Unpack[OtherScopes]) -> tuple[int, int]:
        """How many items, and how many plain calls, of a scope run or are claimed to run next, paused or not."""
        found = self._store().pauses.scope_running(Scope.among({"workflow": workflow, **scope}).text)
        return sum(len(expand_ranges(lane.ranges)) for lane in found.running), len(found.calls)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, workflow: str | None = None, timeout: float | None = None, **scope: Unpack[OtherScopes]) -> bool:
        """Wait for the next pause or resume of a scope, made by anybody anywhere.

        Next is what comes behind the last one that a `wait` of this object returned; before the first, behind the first
        `is_paused`, `state` or `wait`. So none is lost between two waits, or between a look and a wait.

        Args:
            workflow: the scope, or one of the other keywords.
            timeout: seconds; None waits as long as it takes.
            **scope: the other keywords.

        Returns:
            True for a pause, False for a resume.

        Raises:
            PauseTimeout: neither happened in time.
            StoreUnavailable: Redis did not answer for a minute, or until the timeout.
        """
        found = Scope.among({"workflow": workflow, **scope}, "timeout")
        if timeout is not None:
            check_number("timeout", timeout, least=0, most=MOST_SECONDS)
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        reads = self._store().pause_reads
        while True:
            left = deadline - time.monotonic()
            block, patience = min(_BLOCK, max(0.0, left)), min(_OUTAGE, max(0.0, left))
            signal = reads.next_signal(found.text, after=self._note(found), block=block, patience=patience)
            if signal is not None:
                self._seen[found], paused = signal
                return paused
            if left <= 0:
                raise PauseTimeout(f"{found} was neither paused nor resumed within {timeout:g} s")

    def _note(self, scope: Scope) -> str:
        """Where the signals of a scope begin to be new."""
        if scope not in self._seen:
            self._seen[scope] = self._store().pause_reads.last_signal(scope.text)
        return self._seen[scope]
