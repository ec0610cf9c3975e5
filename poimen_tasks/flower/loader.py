"""Templates from two places: Flower's, and ours, which extend them; and a tab of ours in its navigation bar."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tornado.template import Loader, Template

__all__ = ["TemplateLoader"]

_OURS = Path(__file__).parent / "templates"
_MINE = "poimen/"
#: Behind Flower's last tab of its own.
_PLACE = re.compile(r"reverse_url\('broker'\).*?</li>", re.DOTALL)
_TAB = """
        <li class="nav-item">
          <a class="nav-link{% if active_tab == 'poimen' %} active{% end %}" href="{{ reverse_url('poimen') }}"
            {% if active_tab == 'poimen' %}aria-current="page"{% end %}>Poimen</a>
        </li>"""


class TemplateLoader(Loader):
    """As Tornado's; `poimen/<name>` is ours.

    Args:
        root: Flower's own templates.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:  # noqa: ARG002 - Tornado's signature
        """Names are whole paths in either place."""
        return name

    def _create_template(self, name: str) -> Template:
        if name.startswith(_MINE):
            text = (_OURS / name.removeprefix(_MINE)).read_text(encoding="utf-8")
        else:
            text = (Path(self.root) / name).read_text(encoding="utf-8")
        return Template(_with_tab(text) if name == "navbar.html" else text, name=name, loader=self)


def _with_tab(text: str) -> str:
    place: Any = _PLACE.search(text)
    return text if place is None else text[: place.end()] + _TAB + text[place.end() :]
