"""`poimen health`: a short look, for a person or a probe."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from poimen_tasks.cli.doctor import rows, summary
from poimen_tasks.cli.loading import app_options, load_store
from poimen_tasks.cli.output import console, json_option, print_json, with_app
from poimen_tasks.errors import PoimenError
from poimen_tasks.health import glance, lag_of
from poimen_tasks.store import Store

__all__ = ["health"]


@click.command()
@app_options
@json_option
@click.pass_context
def health(ctx: click.Context, app: str | None, directory: Path | None, as_json: bool) -> None:
    """Look at the server, the workers and the audit log, quickly.

    A few reads, so it may run every few seconds. Exits 1 when an error stands; `poimen doctor` looks at everything. The
    app is optional: without one, the settings are those of the environment.
    """
    store = load_store(app, directory)
    found = [replace(finding, advice=with_app(finding.advice)) for finding in glance(store)]
    failed = any(one.is_failure for one in found)
    if as_json:
        print_json({"ok": not failed, "audit": _audit(store), "findings": found})
    else:
        screen = console()
        screen.print(rows(found))
        screen.print(summary(found))
    ctx.exit(1 if failed else 0)


def _audit(store: Store) -> dict[str, object] | None:
    """The audit stream in numbers; None when the server does not tell."""
    try:
        state = store.audit.describe_audit(patience=0.0)
    except PoimenError:
        return None
    lag = {f"lag_{name}": value for name, value in asdict(lag_of(state)).items()}
    return {"sealer": state.who or None, "alive": state.alive, "sealed": state.sealed, **lag}
