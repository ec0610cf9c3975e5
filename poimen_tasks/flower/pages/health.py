"""What `poimen health` says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poimen_tasks.flower.blocks import Block, cell, notice, state, table
from poimen_tasks.flower.pages.page import Asked, Page
from poimen_tasks.flower.passwords import mask_text
from poimen_tasks.flower.system import System

__all__ = ["PAGE"]


def read(system: System, asked: Asked) -> dict[str, Any]:  # noqa: ARG001 - every page is read so
    """A short look at the server, the workers and the log; a server that is away is a finding as well."""
    found = [replace(one, message=mask_text(one.message, 600)) for one in system.health()]
    return {"ok": not any(one.is_failure for one in found), "findings": [one.to_dict() for one in found]}


def show(data: dict[str, Any], asked: Asked) -> list[Block]:  # noqa: ARG001 - every page is shown so
    """Findings, the worst first."""
    order = {"error": 0, "warning": 1, "ok": 2}
    rows = [
        [state(one["level"]), cell(one["check"]), cell(one["subject"], strong=True), cell(one["message"], most=600),
         cell(one["advice"], most=600)]
        for one in sorted(data["findings"], key=lambda one: order[one["level"]])
    ]  # fmt: skip
    said = notice("Nothing is wrong.", "success") if data["ok"] else notice("Something is wrong.", "danger")
    names = ("Level", "Check", "Subject", "Message", "Advice")
    advised = any(one["advice"] for one in data["findings"])  # what to do is wanted on a phone, too
    spare = ("Check",) if advised else ("Check", "Advice")
    return [
        said,
        table("", names, rows, spare=spare, long=names[2:], note="The command poimen doctor looks at everything."),
    ]


PAGE = Page("health", "/health", "Health", read, show)
