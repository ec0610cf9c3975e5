"""`poimen audit export`: events into a file for other programs, or their lines as they were sealed, for an auditor."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

import click

from poimen_tasks.audit import AuditEvent
from poimen_tasks.audit.asking import Asking
from poimen_tasks.audit.segments import line_at
from poimen_tasks.cli.audit_hints import explain_nothing
from poimen_tasks.cli.audit_words import as_dict, filters, log_options, open_log
from poimen_tasks.cli.files import destination, out_option
from poimen_tasks.cli.output import Failure, json_line, json_option, keep_stdout_clean, print_json

__all__ = ["export"]

_COLUMNS = (
    "sequence", "event_id", "event_type", "workflow_id", "task_id", "actor", "timestamp", "action", "reasoning",
    "input", "output", "status", "error", "metadata", "content",
)  # fmt: skip
#: Columns that hold a JSON text, since a table has no nested values.
_NESTED = ("input", "output", "metadata", "content")
_ROWS = 10_000


@click.command()
@log_options
@json_option
@filters
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "csv", "parquet", "lines"]), default="jsonl", show_default=True,
    help="What the file holds; lines: those of the log as they were sealed, for an auditor.",
)  # fmt: skip
@out_option("Where to; the file is there only when it is whole. Default: stdout, but for Parquet.")
@click.option("--full", is_flag=True, help="With the payloads that are kept by digest beside the log.")
def export(
    *, app: str | None, directory: Path | None, log: Path | None, wanted: dict[str, Any], form: str,
    output: Path | None, full: bool, as_json: bool,
) -> None:  # fmt: skip
    """Write events to a file, oldest first.

    They are those that all given filters leave. In CSV and Parquet the columns input, output, metadata and content hold
    JSON texts. Nothing can be proved about such files. For an auditor, `--format lines` writes the lines as they were
    sealed, and `poimen audit prove --lines FILE` makes the proof that goes with them. Or give away the log's directory,
    without its file `key`.
    """
    if form == "parquet" and output is None:
        raise click.UsageError("Parquet is no format for a terminal or a pipe: give --out FILE")
    if as_json:
        keep_stdout_clean()
    asked, given = open_log(app, directory, log), dict(wanted)
    if form == "lines":
        number = _export_lines(asked, wanted, output, as_json=as_json)
    else:
        events = _values(asked, wanted, full=full)
        with destination(output) as file:
            number = _WRITERS[form](events, file)
        _tell(f"{number:,} event{'' if number == 1 else 's'} exported", output, {"events": number}, as_json=as_json)
    if not number and not as_json:  # whose one object is on stderr, where the notes would stand too
        explain_nothing(asked, given)


def _tell(said: str, output: Path | None, counts: dict[str, int], *, as_json: bool) -> None:
    """What was done, on stderr: stdout may be the export."""
    if as_json:
        print_json({**counts, "output": str(output) if output else None}, err=True)
    else:
        click.echo(f"{said}{f' to {output}' if output else ''}", err=True)


def _export_lines(asked: Asking, wanted: dict[str, Any], output: Path | None, *, as_json: bool) -> int:
    number = unsealed = 0
    with destination(output) as file:
        for event in asked.trail(wanted.pop("workflow", None), **wanted):
            if event.sequence is None:
                unsealed += 1
                continue
            file.write(line_at(asked.directory, event.sequence) + b"\n")
            number += 1
    left = f", without {unsealed:,} events that are not sealed yet," if unsealed else ""
    lines = f"{number:,} line{'' if number == 1 else 's'}"
    _tell(f"{lines}{left} exported", output, {"lines": number, "unsealed": unsealed}, as_json=as_json)
    return number


def _values(asked: Asking, wanted: dict[str, Any], *, full: bool) -> Iterator[dict[str, Any]]:
    workflow = wanted.pop("workflow", None)
    for event in asked.trail(workflow, **wanted):
        yield _whole(asked, event) if full and event.content else as_dict(event)


def _whole(asked: Asking, event: AuditEvent) -> dict[str, Any]:
    values = as_dict(event)
    values.pop("content")
    return {**values, **{name: asked.content(event, name) for name in event.content}}


def _write_jsonl(events: Iterable[dict[str, Any]], file: IO[bytes]) -> int:
    number = 0
    for event in events:
        file.write(json_line(event).encode("ascii") + b"\n")
        number += 1
    return number


def _write_csv(events: Iterable[dict[str, Any]], file: IO[bytes]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    rows, number = csv.writer(text), 0
    rows.writerow(_COLUMNS)
    for event in events:
        row = _row(event)
        number += 1
        rows.writerow(["" if row[name] is None else row[name] for name in _COLUMNS])
    text.flush()
    text.detach()
    return number


def _row(event: dict[str, Any]) -> dict[str, Any]:
    """An event without nested values."""
    row = {name: event.get(name) for name in _COLUMNS}
    for name in _NESTED:
        row[name] = None if row[name] in (None, {}) else json_line(row[name])
    return row


def _write_parquet(events: Iterable[dict[str, Any]], file: IO[bytes]) -> int:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise Failure("Parquet needs pyarrow: pip install 'poimen-tasks[parquet]'", kind="ImportError") from None
    kinds = {"sequence": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])
    number = 0
    rows = map(_parquet_row, events)
    with parquet.ParquetWriter(file, schema) as writer:
        while some := list(islice(rows, _ROWS)):
            writer.write_table(pa.Table.from_pylist(some, schema=schema))
            number += len(some)
    return number


def _parquet_row(event: dict[str, Any]) -> dict[str, Any]:
    row = _row(event)
    return {**row, "timestamp": None if row["timestamp"] is None else datetime.fromisoformat(row["timestamp"])}


_WRITERS: dict[str, Callable[[Iterable[dict[str, Any]], IO[bytes]], int]] = {
    "jsonl": _write_jsonl, "csv": _write_csv, "parquet": _write_parquet,
}  # fmt: skip
