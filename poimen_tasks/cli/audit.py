"""`poimen audit`: what happened, and proof that nobody changed it; its commands are in the modules `audit_*`."""

from __future__ import annotations

import click

from poimen_tasks.cli.audit_export import export
from poimen_tasks.cli.audit_log import check, prove, verify
from poimen_tasks.cli.audit_query import query, rebuild_index, show, stats, tail
from poimen_tasks.cli.audit_seal import seal

__all__ = ["audit"]


@click.group()
def audit() -> None:
    """Read, seal and verify the audit log."""


audit.add_command(seal)
audit.add_command(tail)
audit.add_command(query)
audit.add_command(show)
audit.add_command(verify)
audit.add_command(prove)
audit.add_command(check)
audit.add_command(export)
audit.add_command(stats)
audit.add_command(rebuild_index)
