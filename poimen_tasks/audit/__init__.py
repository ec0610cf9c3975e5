"""The audit log: what happened, who did it and why, kept so that nobody can change it unseen."""

from __future__ import annotations

from poimen_tasks.audit.audit import Audit
from poimen_tasks.audit.event import AuditEvent
from poimen_tasks.audit.looking import AuditPage
from poimen_tasks.audit.numbers import AuditStats

__all__ = ["Audit", "AuditEvent", "AuditPage", "AuditStats"]
