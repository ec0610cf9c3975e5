"""Options: one form for the same thing in every command, and an empty value is no default."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from poimen_tasks.cli import main
from poimen_tasks.cli.files import destination
from poimen_tasks.cli.output import Failure
from poimen_tasks.cli.waiting import wait_options
from tests import nursery
from tests.conftest import ROOT
from tests.unit.audit_logs import build

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a command line where no Redis answers."""
    monkeypatch.setattr(os, "environ", {name: os.environ[name] for name in os.environ if "POIMEN_" not in name})
    monkeypatch.setenv("POIMEN_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, words, prog_name="poimen")


def every_option(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Option]]:
    """All options of all commands, with the words that call the command."""
    for param in command.params:
        if isinstance(param, click.Option):
            yield path, param
    for name, below in getattr(command, "commands", {}).items():
        yield from every_option(below, (*path, name))


TAKING = [(path, option) for path, option in every_option(main) if not option.is_flag and option.default != ""]


@pytest.mark.parametrize(("path", "option"), TAKING, ids=[f"{'-'.join(p)}{o.opts[-1]}" for p, o in TAKING])
def test_an_empty_value(run: Run, path: tuple[str, ...], option: click.Option) -> None:
    """An option with an empty value, as from an unset variable of the shell, is refused: it counts as given."""
    name = option.opts[-1]
    found = run(*path, name, "") if path else run(name, "", "status")
    assert found.exit_code == 2, found.output
    assert f"Invalid value for '{name}'" in found.output or f"/ '{name}'" in found.output
    assert not list(Path().iterdir())


def every_command(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that call each command."""
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from every_command(below, (*path, name))


@pytest.mark.parametrize("path", list(every_command(main)), ids=" ".join)
def test_help_fits(path: tuple[str, ...]) -> None:
    """On 80 columns no line of a help is longer, also where its lines are kept as they are."""
    found = CliRunner().invoke(main, [*path, "--help"], terminal_width=80)
    assert [line for line in found.stdout.splitlines() if len(line) > 80] == []
    assert found.stdout.startswith("Usage: ")


def every_group(command: click.Command) -> Iterator[click.Group]:
    """All commands that have commands below them."""
    if isinstance(command, click.Group):
        yield command
        for below in command.commands.values():
            yield from every_group(below)


@pytest.mark.parametrize("group", list(every_group(main)), ids=lambda group: group.name)
def test_a_command_in_a_list_is_said_in_whole_words(group: click.Group) -> None:
    """On 80 columns a list of commands says of each what it does, to the end of the sentence."""
    room = 80 - 2 - 6 - max(map(len, group.commands))
    cut = [name for name, one in group.commands.items() if one.get_short_help_str(room).endswith("...")]
    assert cut == []


@pytest.mark.parametrize("path", [("run",), ("audit", "export"), ("audit", "prove")], ids=lambda path: path[-1])
def test_files_that_are_written(path: tuple[str, ...]) -> None:
    """Every command that writes a file takes it as `-o`, `--out` and `--output`."""
    (found,) = [option for words, option in every_option(main) if words == path and "-o" in option.opts]
    assert found.opts == ["-o", "--out", "--output"]
    assert found.name == "output"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """It is named as it was given, not as what stands aside until it is whole; nothing is left behind."""
    with pytest.raises(Failure, match=f"^{tmp_path}/none/x: No such file or directory$"):  # noqa: SIM117
        with destination(tmp_path / "none" / "x"):
            pass
    with pytest.raises(KeyError), destination(tmp_path / "y") as file:  # noqa: PT012
        file.write(b"half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    with destination(tmp_path / "z") as file:
        file.write(b"whole")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("z", b"whole")]


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    """A pipe and a device are written to, not replaced by a file; of a link, what it leads to is replaced."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with destination(tmp_path / "pipe") as file:
        file.write(b"through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "file").write_bytes(b"before")
    (tmp_path / "link").symlink_to("file")
    with destination(tmp_path / "link") as file:
        file.write(b"behind it")
    assert ((tmp_path / "link").readlink(), (tmp_path / "file").read_bytes()) == (Path("file"), b"behind it")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """Where stdout cannot be written, that is one line, and no trace."""
    words = ["poimen_tasks.cli", "audit", "query", "--json", "--log", str(build(tmp_path / "log", 3))]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "POIMEN_REDIS_URL": "redis://127.0.0.1:1/0"}
    said = tmp_path / "said"
    with Path("/dev/full").open("wb") as full, said.open("wb") as errors:
        code = nursery.start(words, env=env, stdout=full, stderr=errors).wait(timeout=60)
    assert said.read_text() == "error: the output cannot be written: No space left on device\n"
    assert code == 1


@click.command()
@wait_options("it is done")
@click.option("--other")
def waiting(wait: float | None, other: str | None) -> None:
    """A command that waits."""
    click.echo(f"{wait} {other}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "None None"),
        (["--wait"], "inf None"),
        (["--wait", "3"], "3.0 None"),
        (["--wait=0.5"], "0.5 None"),
        (["--wait", "--timeout", "3"], "3.0 None"),
        (["--timeout", "0", "--wait"], "0.0 None"),
        (["--wait", "--other", "x"], "inf x"),
    ],
)
def test_how_long_to_wait(words: list[str], said: str) -> None:
    """`--wait`, `--wait SECONDS` and `--wait --timeout SECONDS` say how long."""
    assert CliRunner().invoke(waiting, words).output == f"{said}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--timeout", "3"], "--timeout is for --wait: give both"),
        (["--wait", "3", "--timeout", "3"], "--wait and --timeout both say how long"),
        (["--wait", "x"], "'x' is not a valid float"),
        (["--wait=-1"], "No such option"),
    ],
)
@pytest.mark.parametrize("command", [("pause", "--everything"), ("drain",)], ids=lambda words: words[0])
def test_how_not_to_say_it(run: Run, command: tuple[str, ...], words: list[str], said: str) -> None:
    """Pause and drain share the two options, and refuse what says nothing or two things."""
    found = run(*command, *words)
    assert (found.exit_code, said in found.output) == (2, True)


@pytest.mark.parametrize("name", ["n" * 255, "é" * 127])
def test_an_output_file_may_have_the_longest_name(tmp_path, name):
    """A file whose name has all the bytes that a name may have is written, and nothing beside it is left."""
    with destination(tmp_path / name) as file:
        file.write(b"all")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"all")]


@pytest.mark.parametrize("words", [("export",), ("query",), ("tail", "--json")], ids=" ".join)
def test_nobody_reads(tmp_path: Path, words: tuple[str, ...]) -> None:
    """As with `| head -1`: exit code 141 as of any program, which is not the 1 of something wrong, and no words."""
    build(tmp_path / "log", 3)
    reader, writer = os.pipe()
    os.close(reader)
    command = ["poimen_tasks.cli", "audit", *words, "--log", "log"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    said = tmp_path / "said"
    with said.open("wb") as errors, os.fdopen(writer, "wb") as pipe:
        code = nursery.start(command, env=env, cwd=tmp_path, stdout=pipe, stderr=errors).wait(timeout=60)
    assert (code, said.read_text()) == (141, "")
