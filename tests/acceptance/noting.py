"""What the bodies of all apps leave behind for their tests to count."""

from __future__ import annotations


def note(path: str, text: str) -> None:
    """Append a line that is never torn."""
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - append mode, one write
        file.write(text + "\n")
