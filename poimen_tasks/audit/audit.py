"""`poimen.audit`: record what was decided and done, and ask what happened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poimen_tasks import context
from poimen_tasks._checks import check_list, expected
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.event import AuditEvent, event_of, fill_in, filled, pack_event
from poimen_tasks.errors import InvalidId

if TYPE_CHECKING:
    from poimen_tasks.settings import Settings
    from poimen_tasks.store import Store

__all__ = ["Audit"]


class Audit(Asking):
    """The audit log of a namespace.

    What is recorded is in the store's stream when the call returns, and leaves it only for the sealed log on disk. The
    system's own events are recorded without asking, in the same step as the change that they tell of.
    """

    def __init__(self, load_settings: Callable[[], Settings], store: Callable[[], Store]) -> None:
        super().__init__(load_settings, store)
        self._store = store

    # --- recording -----------------------------------------------------------------------------------------------

    def record(
        self,
        event_type: str,
        *,
        action: str,
        actor: str | None = None,
        workflow: str | None = None,
        task: str | None = None,
        reasoning: str = "",
        input: Any = None,  # noqa: A002 - the name of the field
        output: Any = None,
        status: str = "success",
        error: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AuditEvent:
        """Record an event. Inside a task, workflow, task and actor are those of the running item where not given.

        Args:
            event_type: what kind of event; a name that does not begin like one of the system's own.
            action: what was done, in words.
            actor: who did it; outside of a task it has to be given.
            workflow: the workflow that it is about.
            task: the task id that it is about.
            reasoning: why, in words; may be long and have lines.
            input: what it was done with; plain values, as JSON carries them.
            output: what came of it.
            status: `success`, `failure`, or another name.
            error: what went wrong, in words.
            metadata: anything else, plain values by name.

        Returns:
            The event, with its id and the store's time; where the reply was lost and asked for again, the time of that.

        Raises:
            InvalidArgument: an argument is out of its range, or the event is over `audit_max_bytes`.
            InvalidId: a name or the task id breaks its rule.
            SerializationError: a value has no place in JSON; the path to it is named.
            StoreUnavailable: Redis does not answer: whether the event was written is unknown. To be safe, record it
                again with `record_many` under an `event_id` of your own: a repetition is told once.
        """
        actor = "" if actor is None else actor  # inherited; outside of a task it is refused
        metadata = {} if metadata is None else metadata
        about = ("", event_type, workflow, task, actor, None, action, reasoning)
        event = event_of((*about, input, output, status, error, metadata, {}, None))
        running = context.current_item()
        if running is not None or actor == "":
            event = _inherit(event, running)
        own = os.urandom(12).hex()
        payload = pack_event(event, most=self._load_settings().audit_max_bytes)
        return fill_in(event, own, self._store().entries.record_event(own, payload))

    def record_many(self, events: Iterable[AuditEvent]) -> list[AuditEvent]:
        """Record events in their order, 500 a round trip; all are checked before the first is written.

        Args:
            events: what to record; those without an id or a time get them. One that was recorded before, under the
                same id and with the same content, is told once.

        Returns:
            The events with their ids and times.

        Raises:
            PoimenError: as `record`.
        """
        if isinstance(events, (AuditEvent, str, bytes, Mapping)) or not isinstance(events, Iterable):
            raise expected("events", "a list of AuditEvent", events)
        most, running = self._load_settings().audit_max_bytes, context.current_item()
        ready = [_inherit(event, running) for event in events]
        payloads = [pack_event(event, most=most) for event in ready]
        fresh = os.urandom(12 * len(ready)).hex()
        ids = [event.event_id or fresh[24 * at : 24 * at + 24] for at, event in enumerate(ready)]
        made = list[AuditEvent]()

        def told(stream_ids: list[str]) -> None:
            start, stop = len(made), len(made) + len(stream_ids)
            made.extend(map(filled, ready[start:stop], ids[start:stop], stream_ids))

        self._store().entries.record_events(ids, payloads, told)
        return made

    def planner_decision(
        self,
        *,
        action: str,
        reasoning: str = "",
        workflow: str | None = None,
        task: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str = "planner",
    ) -> AuditEvent:
        """Record what a planner decided, and why: an event of type `planner_decision`.

        Raises:
            PoimenError: as `record`.
        """
        return self.record(
            "planner_decision", action=action, actor=actor, workflow=workflow, task=task, reasoning=reasoning,
            metadata=metadata,
        )  # fmt: skip

    def judge_verdict(
        self,
        *,
        action: str,
        reasoning: str = "",
        workflow: str | None = None,
        task: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str = "judge",
    ) -> AuditEvent:
        """Record what a judge found, and why: an event of type `judge_verdict`.

        Raises:
            PoimenError: as `record`.
        """
        return self.record(
            "judge_verdict", action=action, actor=actor, workflow=workflow, task=task, reasoning=reasoning,
            metadata=metadata,
        )  # fmt: skip

    def implementer_change(
        self,
        *,
        action: str,
        files_modified: Sequence[str],
        workflow: str | None = None,
        task: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str = "implementer",
    ) -> AuditEvent:
        """Record what an implementer changed: an event of type `implementer_change`.

        Args:
            action: what was done, in words.
            files_modified: paths; they stand in the metadata under this name.
            workflow: the workflow that it is about.
            task: the task id that it is about.
            metadata: anything else.
            actor: who did it.

        Raises:
            PoimenError: as `record`.
        """
        more: dict[str, Any] = {"files_modified": _paths(files_modified)}
        if metadata is not None:
            if not isinstance(metadata, Mapping):
                raise expected("metadata", "a dict", metadata)
            more = {**metadata, **more}
        return self.record(
            "implementer_change", action=action, actor=actor, workflow=workflow, task=task, metadata=more
        )


def _paths(value: Any) -> list[str]:
    paths = check_list("files_modified", "paths", value)
    for path in paths:
        if not isinstance(path, (str, os.PathLike)) or isinstance(os.fspath(path), bytes):
            raise expected("files_modified", "a list of paths, each a text", path)
    return [os.fspath(path) for path in paths]


def _inherit(event: AuditEvent, running: context.RunningItem | None) -> AuditEvent:
    if not isinstance(event, AuditEvent):
        raise expected("event", "an AuditEvent", event)
    if running is not None:
        changes: dict[str, Any] = {}
        if event.workflow is None:
            changes["workflow"] = running.workflow
        # A task id means something within its workflow only.
        if event.task is None and event.workflow in {None, running.workflow}:
            changes["task"] = running.task()
        if event.actor == "":
            changes["actor"] = running.actor
        if changes:
            return replace(event, **changes)
    elif event.actor == "":
        raise InvalidId('actor: outside of a task it has to be given, as actor="ada": who did it')
    return event
