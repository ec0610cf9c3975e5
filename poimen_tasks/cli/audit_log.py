"""`poimen audit verify`, `prove`, `check`: that nobody changed the log, for its owner and for an auditor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from poimen_tasks.audit.check import check as check_files
from poimen_tasks.audit.keys import Verifier, public_key_at
from poimen_tasks.audit.lines import head_of
from poimen_tasks.audit.place import check_place
from poimen_tasks.audit.proof import Proof, prove_growth, prove_line, prove_lines
from poimen_tasks.audit.report import Report
from poimen_tasks.audit.verify import verify as verify_log
from poimen_tasks.cli.audit_words import LOG
from poimen_tasks.cli.files import destination, out_option
from poimen_tasks.cli.loading import app_options, find_server, load_without_server
from poimen_tasks.cli.output import console, json_option, one_line, print_json
from poimen_tasks.errors import AuditUnavailable, InvalidArgument
from poimen_tasks.settings import load_settings

__all__ = ["check", "prove", "verify"]

#: Seconds before progress is shown.
_PATIENCE = 1.0
_SHOWN = 20

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(dir_okay=False, path_type=Path)


def _log_option(command: F) -> F:
    return app_options(
        click.option(
            "--log", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
            help="The directory of the log. Default: POIMEN_AUDIT_DIR, or audit below the data directory.",
        )(command)
    )  # fmt: skip


def _directory(app: str | None, data: Path | None, log: Path | None) -> Path:
    if log is not None:
        check_place(log, advice=LOG)
        return log
    if app is None:
        find_server(data)
    place = load_settings().audit_dir if app is None else load_without_server(app, data).settings.audit_dir
    check_place(place)
    return place


def _key(text: str | None) -> Verifier | None:
    """A public key, or the file that holds it."""
    if text is None:
        return None
    path = Path(text)
    if "+" in text and not path.exists():
        return Verifier.parse(text, where="--key")
    if not path.exists():
        raise click.UsageError(f"--key: {text!r} is no public key, as NAME+HASH+KEY, and no file of that name is there")
    return public_key_at(path)


@click.command()
@_log_option
@json_option
@click.option("--key", metavar="KEY", help="The public key as it was handed out, or its file. Default: the log's own.")
@click.option(
    "--against", metavar="FILE", multiple=True, type=_FILE,
    help="An older checkpoint, kept elsewhere: the log has to have grown from it. May be repeated.",
)  # fmt: skip
@click.pass_context
def verify(
    ctx: click.Context, *, app: str | None, directory: Path | None, log: Path | None, as_json: bool, key: str | None,
    against: tuple[Path, ...],
) -> None:  # fmt: skip
    """Compare the whole log with what was signed.

    It needs no Redis, and may run beside the sealer. Names the first bad line, and why. Exits 1 when anything is not as
    it was sealed.
    """
    place = _directory(app, directory, log)
    with _progress("verifying") as progress:
        report = verify_log(place, key=_key(key), against=against, progress=progress)
    facts = [f"all {report.size:,} lines of {report.origin} are as they were sealed", *_grown(report)]
    said = "; ".join(facts)
    _tell(report, said, as_json=as_json)
    if not as_json and report.ok and key is None:
        click.echo("the key is the log's own: with --key, and --against an older checkpoint, it is proof to others")
    ctx.exit(0 if report.ok else 1)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_FILE)
@json_option
@click.option("--key", metavar="KEY", required=True, help="The public key, or its file.")
@click.option("--checkpoint", metavar="FILE", type=_FILE, help="What all has to lead to. Default: the proof's own.")
@click.option(
    "--against", metavar="FILE", multiple=True, type=_FILE,
    help="An older checkpoint: the log has to have grown from it. May be repeated.",
)  # fmt: skip
@click.pass_context
def check(
    ctx: click.Context, *, files: tuple[Path, ...], as_json: bool, key: str, checkpoint: Path | None,
    against: tuple[Path, ...],
) -> None:  # fmt: skip
    """Check lines and proofs that were taken out of a log.

    It needs neither Redis nor the log. Lines are files of the directory `segments`, or exported lines. All lines that
    the checkpoint covers prove themselves; for some of them, add the proof that `poimen audit prove --lines` made.
    """
    verifier = _key(key)
    if verifier is None:
        raise click.UsageError("--key is empty; give the public key, or its file")
    with _progress("checking") as progress:
        report = check_files(files, key=verifier, checkpoint=checkpoint, against=against, progress=progress)
    _tell(report, _checked(report), as_json=as_json)
    ctx.exit(0 if report.ok else 1)


def _checked(report: Report) -> str:
    lines = f"{report.lines:,} line{'' if report.lines == 1 else 's'}"
    facts = [f"{lines} proved to be in it"] if report.lines else []
    facts += _grown(report)
    return f"checkpoint over {report.size:,} lines of {report.origin}: {'; '.join(facts) or 'signed by the key'}"


def _grown(report: Report) -> list[str]:
    """What `--against` showed."""
    return [f"it grew from the older one over {size:,} lines" for size in report.against]


@click.command()
@click.argument("seq", required=False, type=click.IntRange(min=0))
@_log_option
@json_option
@click.option("--lines", metavar="FILE", multiple=True, type=_FILE, help="Prove these exported lines, all at once.")
@click.option("--from", "older", metavar="FILE", type=_FILE, help="Prove that the log grew from this checkpoint.")
@click.option("--checkpoint", metavar="FILE", type=_FILE, help="Lead to this checkpoint. Default: the current one.")
@out_option("Write the proof to this file. Default: stdout.")
def prove(
    *, seq: int | None, app: str | None, directory: Path | None, log: Path | None, as_json: bool,
    lines: tuple[Path, ...], older: Path | None, checkpoint: Path | None, output: Path | None,
) -> None:  # fmt: skip
    """Prove that line SEQ, or exported lines, are in the log.

    Or, with --from, that the log grew from an older checkpoint.
    `poimen audit check` checks it, with nothing but the public key.
    """
    if sum((seq is not None, bool(lines), older is not None)) != 1:
        raise click.UsageError("what to prove? Give the number of a line, --lines FILE, or --from CHECKPOINT")
    place = _directory(app, directory, log)
    if seq is not None:
        proof = prove_line(place, seq, checkpoint=checkpoint)
    elif older is not None:
        proof = prove_growth(place, older, checkpoint=checkpoint)
    else:
        proof = prove_lines(place, list(_numbers(lines)), checkpoint=checkpoint)
    _hand_out(proof, output, as_json=as_json)


def _numbers(files: Sequence[Path]) -> Iterator[int]:
    for path in files:
        try:
            with path.open("rb") as file:
                for at, line in enumerate(file, 1):
                    yield _number(path, at, line.rstrip(b"\n"))
        except OSError as error:
            raise AuditUnavailable(f"{path}: {error.strerror or error}") from error


def _number(path: Path, at: int, line: bytes) -> int:
    try:
        return head_of(line).seq
    except ValueError as error:
        raise InvalidArgument(f"{path} line {at}: it is no line of an audit log: {error}") from None


def _hand_out(proof: Proof, output: Path | None, *, as_json: bool) -> None:
    if output is not None or not as_json:
        with destination(output) as file:
            file.write(proof.data)
    if as_json:
        print_json(proof.to_dict())
    elif output is not None:
        click.echo(f"{len(proof.hashes)} hashes and the checkpoint are in {output}")


def _tell(report: Report, said: str, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
        return
    screen = console()
    for note in report.notes:
        screen.print(Text.assemble(("note     ", "yellow"), one_line(note, most=2000)), soft_wrap=True)
    for problem in report.problems[:_SHOWN]:
        screen.print(Text.assemble(("bad      ", "red"), one_line(str(problem), most=2000)), soft_wrap=True)
    if len(report.problems) > _SHOWN:
        screen.print(f"{len(report.problems) - _SHOWN} more; --json has them all")
    if report.ok:
        screen.print(Text.assemble(("ok       ", "green"), said), soft_wrap=True)
        screen.print(f"root     {report.root}")


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, where that is a terminal, once it has taken a second."""
    screen = console(err=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), DownloadColumn(), TimeRemainingColumn())
    bar, began = Progress(*columns, console=screen, transient=True, expand=True), time.monotonic()
    task = bar.add_task(what, total=None)

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if screen.is_terminal and not bar.live.is_started and time.monotonic() - began > _PATIENCE:
            bar.start()

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
