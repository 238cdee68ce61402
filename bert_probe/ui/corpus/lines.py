"""A word in its contexts, one beneath the other, and what surrounds it. Nothing here knows Streamlit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bert_probe.views.text import shown

AROUND: Final = 70
"""Characters of a context on each side of its word."""
MOST: Final = 6
"""Names that have a colour of their own; all others are called `OTHER`."""
OTHER: Final = "others"
NOTHING: Final = "nothing"

_WORD: Final = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class ContextLine:
    """A word in its context.

    Attributes:
        left, word, right: as the text has them, cut far from the word.
        before, after: the words beside it, in small letters; `NOTHING` at the ends.
    """

    left: str
    word: str
    right: str
    before: str
    after: str


def line(text: str, start: int, end: int) -> ContextLine:
    """The characters from ``start`` to ``end`` in their context."""
    left, right = text[:start], text[end:]
    # A word beyond so many characters is none: looking for it would take as long as the text is.
    before, after = _WORD.findall(left[-_FAR:]), _WORD.search(right[:_FAR])
    return ContextLine(
        shown(("…" if len(left) > AROUND else "") + left[-AROUND:].lstrip()),
        shown(text[start:end]),
        shown(right[:AROUND].rstrip() + ("…" if len(right) > AROUND else "")),
        before[-1].casefold() if before else NOTHING,
        after[0].casefold() if after else NOTHING,
    )


_FAR: Final = 200


def named(names: Sequence[str]) -> list[str]:
    """The same, those that are not among the most frequent called `OTHER`."""
    kept = {name for name, _ in Counter(names).most_common(MOST)}
    return [name if name in kept else OTHER for name in names]
