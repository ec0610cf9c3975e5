"""`python -m poimen_tasks.cli` is `poimen`."""

from __future__ import annotations

from poimen_tasks.cli import main

main(prog_name="poimen")
