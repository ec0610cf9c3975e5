"""`poimen audit`: what happened, and proof that nobody changed it; its commands are in the modules `audit_*`."""

from __future__ import annotations

import click

from poimen_tasks.cli.audit_seal import seal

__all__ = ["audit"]


@click.group()
def audit() -> None:
    """Read, seal and verify the audit log."""


audit.add_command(seal)
