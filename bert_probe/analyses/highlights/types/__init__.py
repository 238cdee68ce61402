"""Findings: what may be worth saying of a text; a file for a kind, or for a few alike, found by being here.

A file sets ``KINDS``. Each is a number that can be measured on any text, so that the same number of the
shipped sentences says how unusual it is, and a sentence that says what was measured and no more. Everything
else follows: the overview's page, table, files and command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from bert_probe.analyses.attention.head_measures import is_punctuation, measure_heads
from bert_probe.analyses.highlights.thumbnails import Picture
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.truncation import truncate_text
from bert_probe.text.words import Unit, WordLens, word_lens

MOST_TOKENS = 512
"""Of a text whose attention, or every two of whose tokens, are looked at."""


@dataclass(frozen=True, eq=False)
class HighlightContext:
    """A text as the kinds look at it; what several of them need is made once."""

    trace: Trace

    @property
    def attends(self) -> bool:
        """Whether shares of attention can be told: its rows sum to 1, and there are not too many of them."""
        return not self.trace.caveat and self.is_short

    @property
    def is_short(self) -> bool:
        """Whether every two tokens can be looked at."""
        return len(self.trace.tokens) <= MOST_TOKENS

    @cached_property
    def heads(self) -> Mapping[str, Array]:
        """Measures of all heads, name → [layer, head]; see `measure_heads`."""
        return measure_heads(self.trace, None)

    @cached_property
    def lens(self) -> WordLens:
        """Words and special tokens."""
        return word_lens(self.trace)

    @cached_property
    def own(self) -> tuple[Token, ...]:
        """Tokens that are of the text itself, and no punctuation."""
        return tuple(token for token in self.trace.tokens if not token.special and not is_punctuation(token))

    def vectors(self, layer: int) -> Array:
        """Of the tokens that are the text's `own`, after a layer, [token, hidden]."""
        return self.trace.vectors(layer)[[token.position for token in self.own]]


@dataclass(frozen=True, eq=False)
class HighlightCandidate:
    """What a kind found in a text.

    Attributes:
        value: the number.
        said: a sentence that says it, with its ".".
        page, choices: where it is to be seen: the name of a page, and parameters of its address, as this will
            be then: without what goes without saying.
        picture: makes the small picture.
        clear: whether it is worth the sentence at all; a number has a value on any text.
    """

    value: float
    said: str
    page: str
    choices: Mapping[str, str]
    picture: Callable[[], Picture]
    clear: bool = True


@dataclass(frozen=True)
class HighlightType:
    """Something that may be found in a text.

    Attributes:
        name: in tables; several numbers may be of one kind.
        measure: what the number is. No two have the same.
        order: its place where it is not known how unusual a number is.
        of: what was found in a text, or in two; None where there is nothing to measure.
        texts: 1, or 2 that are read by themselves.
        alone: of a text by itself only, as the page where it is to be seen compares two with each other.
        sentences: of so many of the shipped ones it is measured; None for all. Fewer where it runs the model.
    """

    name: str
    measure: str
    order: int
    of: Callable[..., HighlightCandidate | None]
    texts: int = 1
    alone: bool = False
    sentences: int | None = None


def kinds(texts: int) -> tuple[HighlightType, ...]:
    """Those of one text, or of two."""
    return tuple(kind for kind in _found() if kind.texts == texts)


@cache
def _found() -> tuple[HighlightType, ...]:
    modules: list[Any] = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [kind for module in modules for kind in module.KINDS]
    return tuple(sorted(found, key=lambda kind: kind.order))


def quoted(unit: Token | Unit, among: Sequence[Token | Unit] = ()) -> str:
    """A word in quotation marks, with its position where another is written the same."""
    name = f"“{truncate_text(unit.display)}”"
    return f"{name} ({unit.position})" if sum(one.display == unit.display for one in among) > 1 else name
