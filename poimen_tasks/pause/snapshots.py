"""`poimen.snapshots`: take what a workflow is, keep it on disk, bring it back; also on another host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from poimen_tasks._checks import check_flag, words
from poimen_tasks.errors import (
    LayoutMismatch,
    PoimenError,
    SnapshotConflict,
    SnapshotCorrupt,
    SnapshotFailed,
    SnapshotNotFound,
    SnapshotTooNew,
)
from poimen_tasks.ids import check_actor, check_labels, check_name
from poimen_tasks.pause.catalogue import Catalogue
from poimen_tasks.pause.restore import Publish
from poimen_tasks.pause.revive import Revival
from poimen_tasks.pause.snapshot import Snapshot, SnapshotStats
from poimen_tasks.pause.snapshot_shelf import Shelf
from poimen_tasks.pause.snapshot_words import generation_of, moment_of, plain_fields, task_fields
from poimen_tasks.pause.taking import take
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.keys import LAYOUT

__all__ = ["Snapshots"]


def _quiet(_items: int) -> None:
    pass


class Snapshots:
    """The snapshots of one app; they are below its data directory.

    Args:
        load_settings: gives the settings; asked at each use.
        store: gives this process's store.
        publish: publishes tickets.
        publish_calls: publishes plain calls that were held.
    """

    def __init__(
        self,
        load_settings: Callable[[], Settings],
        store: Callable[[], Store],
        publish: Publish,
        publish_calls: Callable[[Any], None],
    ) -> None:
        self._load_settings = load_settings
        self._get_store = store
        self._publish = publish
        self._publish_calls = publish_calls

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._shelf.directory

    @property
    def _shelf(self) -> Shelf:
        settings = self._load_settings()
        return Shelf(settings.data_dir, namespace=settings.namespace, keep=settings.snapshot_keep)

    @property
    def _catalogue(self) -> Catalogue:
        return Catalogue(self._shelf)

    # --- taking --------------------------------------------------------------------------------------------------

    def create(
        self,
        workflow: str,
        *,
        stage: str | None = None,
        completed_tasks: Iterable[str] | None = None,
        pending_tasks: Iterable[str] | None = None,
        failed_tasks: Iterable[str] | None = None,
        current_task_id: str | None = None,
        current_activity_id: str | None = None,
        task_metrics: Mapping[str, Any] | None = None,
        workflow_metrics: Mapping[str, Any] | None = None,
        configuration: Mapping[str, Any] | None = None,
        error: str | None = None,
        actor: str | None = None,
        reason: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> Snapshot:
        """Take a workflow as it is now, and keep it on disk; it may run on meanwhile.

        What is not given is told from its batches; a workflow need not have any. Whatever is given, the file holds
        what is needed to go on.

        Args:
            workflow: its id.
            stage: where it stands.
            completed_tasks: ids of what is done; the first 1,000 are kept, and counted exactly.
            pending_tasks: ids of what is to be done.
            failed_tasks: ids of what failed.
            current_task_id: what runs.
            current_activity_id: and its task's name.
            task_metrics: plain values.
            workflow_metrics: plain values.
            configuration: plain values.
            error: why it stopped.
            actor: who takes it, for the audit log.
            reason: why.
            progress: told now and then how many more items were read.

        Raises:
            InvalidId: a name breaks its rule.
            SerializationError: a value that was given has no JSON form.
            SnapshotConflict: it is being restored, or that broke off: what is there is a part of it.
            SnapshotFailed: it could not be written; the one before is untouched.
            StoreUnavailable: Redis does not answer.
        """
        name, who = check_name(workflow, "workflow"), check_actor(actor)
        given = {
            "stage": stage if stage is None else check_name(stage, "stage"),
            **task_fields("completed", completed_tasks),
            **task_fields("pending", pending_tasks),
            **task_fields("failed", failed_tasks),
            "current_task_id": None if current_task_id is None else check_labels([current_task_id], "task id")[0],
            "current_activity_id": None if current_activity_id is None else words(current_activity_id, 256),
            "task_metrics": plain_fields("task_metrics", task_metrics),
            "workflow_metrics": plain_fields("workflow_metrics", workflow_metrics),
            "configuration": plain_fields("configuration", configuration),
            "error": None if error is None else words(error, 2000),
        }
        own = {key: value for key, value in given.items() if value is not None}
        store = self._get_store()
        told_why = {"actor": who, "reason": words(reason)}
        snapshot = self._shelf.write(
            name, lambda file: take(file, store, name, own=own, progress=progress or _quiet, **told_why)
        )
        told = {"snapshot": snapshot.id, "host": socket.gethostname()[:200], "batches": len(snapshot.batches)}
        told |= {"items": snapshot.items, "bytes": snapshot.size, "taken": snapshot.timestamp.timestamp()}
        store.snapshots.note_snapshot(
            name, **told, **told_why, stage=snapshot.stage, error=(snapshot.error or "")[:500]
        )
        return snapshot

    def keep_paused(self, workflow: str, *, actor: str | None, reason: str) -> Snapshot:
        """Take a workflow that was just paused.

        Raises:
            SnapshotFailed: it was not kept; says that the pause holds.
        """
        try:
            return self.create(workflow, actor=actor, reason=reason)
        except PoimenError as error:
            raise SnapshotFailed(
                f"workflow {workflow!r} is paused and stays so, but it was not kept: {error}"
            ) from error

    # --- looking -------------------------------------------------------------------------------------------------

    def latest(self, workflow: str, *, generation: int = 0) -> Snapshot:
        """The newest snapshot of a workflow, or one before it.

        Args:
            workflow: its id.
            generation: 0 for the newest, 1 for the one before, and so on.

        Raises:
            SnapshotNotFound: there is none.
            SnapshotCorrupt: its file is torn, was altered, or is no snapshot.
            SnapshotTooNew: a newer version of this package wrote it.
        """
        return self._catalogue.find(check_name(workflow, "workflow"), generation_of(generation))

    def has(self, workflow: str) -> bool:
        """Whether a workflow has a snapshot that can be read."""
        try:
            self.latest(workflow)
        except (SnapshotNotFound, SnapshotCorrupt, SnapshotTooNew, SnapshotFailed):
            return False
        return True

    def all(self, *, generations: bool = False) -> list[Snapshot]:
        """The newest snapshot of each workflow, the newest first; with `generations` those before them too.

        A file that cannot be read is told in the log and left out.
        """
        return self._catalogue.all(generations=generations)

    def last(self) -> Snapshot | None:
        """The newest snapshot of all workflows; None when there is none."""
        return next(iter(self.all()), None)

    def stats(self) -> SnapshotStats:
        """How many there are, and how large."""
        return self._catalogue.stats()

    # --- removing ------------------------------------------------------------------------------------------------

    def delete(self, workflow: str) -> int:
        """Remove all snapshots of a workflow. Returns how many there were."""
        return self._shelf.remove(check_name(workflow, "workflow"))

    def clear_older_than(self, age: float | timedelta | datetime) -> int:
        """Remove snapshots that are older than so many seconds, a timedelta, or a moment. Returns how many."""
        return self._catalogue.remove_older(moment_of(age))

    # --- bringing back -------------------------------------------------------------------------------------------

    def restore(
        self,
        workflow: str,
        *,
        resume: bool = True,
        generation: int = 0,
        actor: str | None = None,
        reason: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> Snapshot:
        """Bring a workflow back as its snapshot has it, into a store that does not know its batches.

        Items with an outcome keep it, all others run; callbacks that fired do not fire again. Where a restore broke
        off, calling it again goes on.

        Args:
            workflow: its id.
            resume: the workflow goes on at once; with False a pause that it was under holds. Batches that were paused
                one by one stay so.
            generation: 0 for the newest, 1 for the one before.
            actor: who restores, for the audit log.
            reason: why.
            progress: told now and then how many more items were written.

        Raises:
            SnapshotNotFound: there is none.
            SnapshotCorrupt: its file is torn, was altered, or is no snapshot.
            SnapshotTooNew: a newer version of this package wrote it.
            LayoutMismatch: it holds data of another layout.
            SnapshotConflict: it was restored here already, somebody restores it now, or a batch of it is there.
            StoreUnavailable: Redis does not answer.
        """
        check_flag("resume", resume)
        snapshot = self.latest(workflow, generation=generation)
        if snapshot.layout != str(LAYOUT):
            raise LayoutMismatch(
                f"the snapshot of workflow {snapshot.workflow!r} has layout {snapshot.layout}, this version reads "
                f"layout {LAYOUT}: restore it with version {snapshot.version}"
            )
        who = check_actor(actor)
        try:
            revival = Revival(
                self._get_store(), snapshot, actor=who, reason=words(reason), publish=self._publish,
                publish_calls=self._publish_calls,
            )  # fmt: skip
            reader = self._shelf.open(snapshot.workflow, snapshot.generation, snapshot_id=snapshot.id)
            revival.run(reader, resume=resume, progress=progress or _quiet)
        except SnapshotConflict:
            raise
        except PoimenError:
            self._note(snapshot, success=False)
            raise
        goes_on = resume or f"w:{snapshot.workflow}" not in snapshot.pauses
        return self._note(snapshot, success=True) if goes_on else snapshot

    def mark_resumed(self, workflow: str, *, success: bool = True) -> Snapshot:
        """Note in the newest snapshot of a workflow that it was resumed, or that it was tried.

        Raises:
            SnapshotNotFound, SnapshotCorrupt, SnapshotTooNew: as `latest`.
        """
        check_flag("success", success)
        return self._note(self.latest(workflow), success=success)

    def _note(self, snapshot: Snapshot, *, success: bool) -> Snapshot:
        resumed = datetime.now(UTC) if success else snapshot.resumed_at
        noted = replace(
            snapshot,
            resumed_at=resumed,
            resume_attempts=snapshot.resume_attempts + 1,
            resume_success=success,
        )
        self._shelf.note_resumed(noted)
        return noted
