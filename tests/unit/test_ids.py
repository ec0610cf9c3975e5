"""Names and labels."""

from __future__ import annotations

import enum
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poimen_tasks.errors import InvalidId
from poimen_tasks.ids import LABEL_RULE, NAME_RULE, check_actor, check_label, check_labels, check_name

RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
NAMES = st.from_regex(RULE, fullmatch=True)
LABELS = st.text(min_size=1, max_size=256).filter(str.isprintable)
FOREIGN = [None, 0, 1.5, True, b"batch", ["b"], object(), 10**6000]
FORGED = ["a\nb", "a\r", "\x00", "\x1b[31m", "\u2028", "\x85", "\u202etxt", "\udc80", "\x7f"]


@given(NAMES)
def test_names_pass_unchanged(name: str) -> None:
    """What the rule allows comes back as it is."""
    assert check_name(name, "batch id") == name


@given(st.text())
def test_a_name_is_what_the_rule_says(text: str) -> None:
    """A text is accepted exactly when the documented rule matches all of it (fault H11)."""
    if RULE.fullmatch(text):
        assert check_name(text, "workflow") == text
    else:
        with pytest.raises(InvalidId, match="workflow"):
            check_name(text, "workflow")


@pytest.mark.parametrize(
    "bad", ["", ".a", "-a", ":a", "_a", "a/b", "../x", "..\\x", "%2e%2e", "a b", "ä", "a" * 129, "a\n"]
)
def test_bad_names(bad: str) -> None:
    """Paths, escapes, spaces, other scripts, over-long and empty names are refused (fault H11, fault H10)."""
    with pytest.raises(InvalidId) as caught:
        check_name(bad, "batch id")
    assert str(caught.value).startswith(f"batch id: expected {NAME_RULE}, got ")


def test_an_actor_is_a_name() -> None:
    """Who acts is a name like any other; where nobody says who, it is unknown."""
    assert check_actor("ann") == "ann"
    assert check_actor(None) == "unknown"
    with pytest.raises(InvalidId, match="actor: expected"):
        check_actor("a\nb")


@given(LABELS)
def test_labels_pass_unchanged(label: str) -> None:
    """Printable text of any script comes back as it is."""
    assert check_label(label, "item id") == label
    assert check_labels([label, label], "item id") == [label, label]


@pytest.mark.parametrize("label", ["src/a b.py", "https://example.com/?q=1&r=%20#x", "日本語", "x" * 256, "C:\\dir"])
def test_paths_and_urls_are_labels(label: str) -> None:
    """Item ids may be the paths and URLs that the work is about."""
    assert check_label(label, "item id") == label


@pytest.mark.parametrize("bad", ["", "x" * 257, *FORGED])
@pytest.mark.parametrize("check", [check_label, lambda value, what: check_labels(["ok", value], what)])
def test_bad_labels(bad: str, check: Any) -> None:
    """Line breaks, control and invisible characters never get into an id, alone or among others (fault H10)."""
    with pytest.raises(InvalidId) as caught:
        check(bad, "task id")
    assert str(caught.value).startswith(f"task id: expected {LABEL_RULE}, got ")


@given(st.text(min_size=257) | st.text(max_size=3).filter(lambda text: not text.isprintable()))
def test_errors_stay_on_one_short_line(text: str) -> None:
    """The error about a forged id cannot forge a log line itself (fault H10)."""
    with pytest.raises(InvalidId) as caught:
        check_label(text, "item id")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("check", [check_name, check_label, lambda value, what: check_labels([value], what)])
def test_other_types_are_refused(value: Any, check: Any) -> None:
    """An id is a string; the error names the type that came instead."""
    with pytest.raises(InvalidId, match=f"actor: expected .*, got {type(value).__name__}"):
        check(value, "actor")


@pytest.mark.parametrize("check", [check_name, check_label, lambda value, what: check_labels([value], what)[0]])
def test_an_enum_member_becomes_its_text(check: Any) -> None:
    """A subclass of str comes back as plain text, fit for the wire."""
    kind = enum.Enum("kind", {"NIGHTLY": "nightly"}, type=str)
    found = check(kind.NIGHTLY, "workflow")
    assert found == "nightly"
    assert type(found) is str


@given(st.lists(st.text(max_size=5) | st.none()))
def test_many_labels_as_one_by_one(values: list[Any]) -> None:
    """The bulk check accepts exactly the lists whose every member the single check accepts."""

    def verdict(check: Any) -> Any:
        try:
            return check()
        except InvalidId as error:
            return str(error)

    assert verdict(lambda: check_labels(values, "id")) == verdict(
        lambda: [check_label(value, "id") for value in values]
    )


def test_long_ids_are_shortened_in_errors() -> None:
    """An error shows the beginning of a long id, and how long it is."""
    with pytest.raises(InvalidId, match=r"'x{50,60}\.\.\. \(1000 characters\)$"):
        check_name("x" * 1000, "batch id")
