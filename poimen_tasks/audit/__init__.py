"""The audit log: what happened, sealed on disk so that a change shows, and found again."""

from __future__ import annotations
