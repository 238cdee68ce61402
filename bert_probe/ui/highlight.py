"""A text in which parts are marked with a colour and a name. Nothing here knows Streamlit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bert_probe.ui.state import plain

COLOURS = ("violet", "orange", "green", "blue", "red", "yellow")
"""Of parts that differ; after the last the first again, as every part also bears its name."""

_MOST_BETWEEN = 400
"""Characters of text without a mark that are shown; of more, the two ends."""


@dataclass(frozen=True)
class HighlightSpan:
    """A part of a text.

    Attributes:
        start, end: its characters.
        name: what it is called, beside it.
        colour: one of `COLOURS`.
    """

    start: int
    end: int
    name: str
    colour: str


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, in the order of the alphabet, so that a name keeps its own."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(sorted(set(names)))}


def markdown(text: str, marks: Sequence[HighlightSpan]) -> str:
    """The text as Markdown; whatever it holds stands there as text. Marks must not overlap.

    Those of one name that touch become one, and neighbours bear their name once, after the last.
    """
    ordered = _joined(marks)
    done, parts = 0, []
    for number, mark in enumerate(ordered, start=1):
        parts.append(_between(text[done : mark.start]))
        parts.append(f":{mark.colour}-background[{_kept(text[mark.start : mark.end])}]")
        done = mark.end
        after = ordered[number] if number < len(ordered) else None
        if after is None or after.name != mark.name or text[mark.end : after.start].strip():
            parts.append(f" :{mark.colour}[**{plain(mark.name)}**] ")
    parts.append(_between(text[done:]))
    return "".join(parts)


def _joined(marks: Sequence[HighlightSpan]) -> list[HighlightSpan]:
    joined: list[HighlightSpan] = []
    for mark in sorted(marks, key=lambda one: (one.start, one.end)):
        if joined and joined[-1].name == mark.name and joined[-1].end == mark.start:
            joined[-1] = replace(joined[-1], end=mark.end)
        else:
            joined.append(mark)
    return joined


def _between(text: str) -> str:
    if len(text) <= _MOST_BETWEEN:
        return _kept(text)
    half = _MOST_BETWEEN // 2
    return f"{_kept(text[:half])} … {_kept(text[-half:])}"


def _kept(text: str) -> str:
    """As text, with the spaces at its ends, which Markdown needs between words."""
    before, after = (" " if end.isspace() else "" for end in (text[:1], text[-1:]))
    return f"{before}{plain(text, len(text))}{after}" if text.strip() else before
