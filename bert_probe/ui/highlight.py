"""Text with highlighted spans as Markdown. Independent of Streamlit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bert_probe.ui.state import escape

COLOURS = ("violet", "orange", "green", "blue", "red", "yellow")
"""Colors of spans with different names; they repeat, as each span also bears its name."""

_MAX_PLAIN = 400
"""Maximum length of text between two spans; from longer text the middle is cut out."""


@dataclass(frozen=True)
class HighlightSpan:
    """A span of characters with a name that is drawn next to it and a color from `COLORINGS`."""

    start: int
    end: int
    name: str
    colour: str


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each name, assigned in alphabetical order."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(sorted(set(names)))}


def markdown(text: str, marks: Sequence[HighlightSpan]) -> str:
    """Return the text as escaped Markdown with highlighted spans, which must not overlap.

    Adjacent spans with the same name are joined, and the name follows the last of them.
    """
    spans = _join_spans(marks)
    end, parts = 0, []
    for number, span in enumerate(spans, start=1):
        parts.append(_plain_text(text[end : span.start]))
        parts.append(f":{span.colour}-background[{_escape(text[span.start : span.end])}]")
        end = span.end
        following = spans[number] if number < len(spans) else None
        if following is None or following.name != span.name or text[span.end : following.start].strip():
            parts.append(f" :{span.colour}[**{escape(span.name)}**] ")
    parts.append(_plain_text(text[end:]))
    return "".join(parts)


def _join_spans(marks: Sequence[HighlightSpan]) -> list[HighlightSpan]:
    joined: list[HighlightSpan] = []
    for span in sorted(marks, key=lambda span: (span.start, span.end)):
        if joined and joined[-1].name == span.name and joined[-1].end == span.start:
            joined[-1] = replace(joined[-1], end=span.end)
        else:
            joined.append(span)
    return joined


def _plain_text(text: str) -> str:
    if len(text) <= _MAX_PLAIN:
        return _escape(text)
    half = _MAX_PLAIN // 2
    return f"{_escape(text[:half])} … {_escape(text[-half:])}"


def _escape(text: str) -> str:
    """Escape text for Markdown, with a space at each end that has whitespace."""
    before, after = (" " if end.isspace() else "" for end in (text[:1], text[-1:]))
    return f"{before}{escape(text, len(text))}{after}" if text.strip() else before
