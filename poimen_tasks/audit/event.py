"""`AuditEvent`: one thing that happened, as it stands on a line of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = ["AuditEvent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One event of the audit log."""

    event_id: str
    event_type: str
    workflow: str | None
    task: str | None
    actor: str
    timestamp: datetime
    action: str
    reasoning: str = ""
    input: Any = None
    output: Any = None
    status: str = "success"
    error: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names that stand in the log."""
        return {
            "event_id": self.event_id,
            "event_type": self.event_type,
            "workflow_id": self.workflow,
            "task_id": self.task,
            "actor": self.actor,
            "timestamp": self.timestamp.isoformat(),
            "action": self.action,
            "reasoning": self.reasoning,
            "input": self.input,
            "output": self.output,
            "status": self.status,
            "error": self.error,
            "metadata": dict(self.metadata),
        }
