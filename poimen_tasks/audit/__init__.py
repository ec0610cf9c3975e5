"""The audit log: what happened, who did it and why, kept so that nobody can change it unseen."""

from __future__ import annotations

from poimen_tasks.audit.event import AuditEvent

__all__ = ["AuditEvent"]
