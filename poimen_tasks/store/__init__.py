"""The only room that talks to Redis: keys, client, scripts, wire formats."""

from __future__ import annotations

from poimen_tasks.settings import Settings
from poimen_tasks.store.audit_entries import AuditEntries
from poimen_tasks.store.audit_scripts import AuditScripts
from poimen_tasks.store.cache_scripts import CacheScripts
from poimen_tasks.store.call_scripts import CallScripts
from poimen_tasks.store.client import Client
from poimen_tasks.store.keys import Keys
from poimen_tasks.store.pause_reads import PauseReads
from poimen_tasks.store.pause_scripts import PauseScripts
from poimen_tasks.store.reads import Reads
from poimen_tasks.store.refusals import Refusal
from poimen_tasks.store.scripts import Scripts
from poimen_tasks.store.snapshot_scripts import SnapshotScripts
from poimen_tasks.store.tracker_reads import TrackerReads
from poimen_tasks.store.tracker_scripts import TrackerScripts

__all__ = [
    "AuditEntries",
    "AuditScripts",
    "CacheScripts",
    "CallScripts",
    "Client",
    "Keys",
    "PauseReads",
    "PauseScripts",
    "Reads",
    "Refusal",
    "Scripts",
    "SnapshotScripts",
    "Store",
    "TrackerReads",
    "TrackerScripts",
]


class Store:
    """What the other rooms hold: scripts to change, reads to look."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.client = Client(settings, url)
        self.keys = self.client.keys
        self.scripts = Scripts(self.client)
        self.cache = CacheScripts(self.client)
        self.calls = CallScripts(self.client)
        self.pauses = PauseScripts(self.client)
        self.snapshots = SnapshotScripts(self.client)
        self.pause_reads = PauseReads(self.client)
        self.trackers = TrackerScripts(self.client)
        self.tracker_reads = TrackerReads(self.client)
        self.audit = AuditScripts(self.client)
        self.reads = Reads(self.client)
        self.entries = AuditEntries(self.client)
        self.settings = settings
