"""Highlight types: values in which a text may differ from the reference sentences.

A highlight type measures one value on a text and states it in a sentence. Each module of this package defines
``HIGHLIGHT_TYPES`` and is discovered automatically. All types are available on the page, in tables, in
exports and on the command line. The package `views` draws the thumbnail of a highlight from its data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeAlias

import numpy as np

from bert_probe.analyses.attention.attention import largest_in_blocks
from bert_probe.analyses.attention.heads import is_punctuation, measure_heads
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, WordLens, truncate_text, word_lens

MAX_TOKENS = 512
"""Maximum number of tokens for highlights of attention and of token pairs."""


@dataclass(frozen=True, eq=False)
class HighlightContext:
    """A text, with intermediate results that several highlight types share and that are computed once."""

    trace: Trace

    @property
    def has_attention_shares(self) -> bool:
        """Whether attention shares can be measured: attention rows sum to 1 and the text is short enough."""
        return not self.trace.caveat and self.is_short

    @property
    def is_short(self) -> bool:
        """Whether the text has at most `MAX_TOKENS` tokens."""
        return len(self.trace.tokens) <= MAX_TOKENS

    @cached_property
    def heads(self) -> Mapping[str, Array]:
        """Measures of all heads by name, each of shape [layer, head]; see `measure_heads`."""
        return measure_heads(self.trace, None)

    @cached_property
    def reachable(self) -> tuple[Array, ...]:
        """Whether each query may attend to each key, for each layer, bool [query, key].

        A mask hides the tokens after a query in a causal model, and those outside of a local window. If only
        weights are known, as for Longformer, the hidden keys are those with a weight of 0 in all heads.
        """
        trace = self.trace
        if trace.masks is None:
            return tuple(trace.attention(layer).max(axis=0) > 0 for layer in range(trace.layers))
        by_mask: dict[int, Array] = {}
        for mask in trace.masks:
            if id(mask) not in by_mask:
                allowed = np.ones((len(trace.tokens),) * 2, dtype=bool)
                if mask is not None:
                    is_open = mask if mask.dtype == bool else mask > np.finfo(mask.dtype).min / 2
                    allowed &= is_open if is_open.ndim == 2 else is_open.any(axis=0)
                by_mask[id(mask)] = np.tril(allowed) if trace.is_causal else allowed
        return tuple(by_mask[id(mask)] for mask in trace.masks)

    @cached_property
    def queries_with_target(self) -> Mapping[str, Array]:
        """For each share of a specialized head, the number of queries that may attend to such a key.

        The arrays have shape [layer]. For example, the first token has no previous token.
        """
        tokens = self.trace.tokens
        count = len(tokens)
        units = np.repeat(np.arange(len(self.lens.units)), [len(unit.positions) for unit in self.lens.units])
        numbers: dict[str, int] = {}  # not an array of strings, each as long as the longest
        names = np.array([numbers.setdefault(str(token), len(numbers)) for token in tokens])
        segments = np.array([token.segment for token in tokens])
        itself = np.eye(count, dtype=bool)
        is_target = {
            "previous": np.eye(count, k=-1, dtype=bool),
            "next": np.eye(count, k=1, dtype=bool),
            "self": itself,
            "same_token": (names[:, None] == names) & ~itself,
            "same_word": (units[:, None] == units) & ~itself,
            "punctuation": np.broadcast_to([*map(is_punctuation, tokens)], itself.shape),
            "other_segment": segments[:, None] != segments,
        }
        return {
            share: np.array([(is_key & reachable).any(axis=1).sum() for reachable in self.reachable])
            for share, is_key in is_target.items()
        }

    @cached_property
    def lens(self) -> WordLens:
        """The mapping that merges the text's tokens into words."""
        return word_lens(self.trace)

    @cached_property
    def content_tokens(self) -> tuple[Token, ...]:
        """Tokens that are neither special nor punctuation."""
        return tuple(token for token in self.trace.tokens if not token.special and not is_punctuation(token))

    def vectors(self, layer: int) -> Array:
        """Return the hidden states of the content tokens after a layer, shape [token, hidden]."""
        return self.trace.vectors(layer)[[token.position for token in self.content_tokens]]


SIDE = 48
"""Maximum number of rows and of columns of a thumbnail grid."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A small matrix, drawn as a heatmap.

    Attributes:
        cells: values of the cells, shape [row, column]. Cells with values of 0 or less are drawn empty.
        maximum: smallest value that is drawn in the darkest color.
        mark: row and column of the cell to emphasize.
    """

    cells: Array
    maximum: float = 1.0
    mark: tuple[int, int] | None = None

    @classmethod
    def of(cls, matrix: Array, maximum: float = 1.0, mark: tuple[int, int] | None = None) -> Grid:
        """Return a grid of at most `SIDE` cells per side, each with the maximum of a block of the matrix.

        Args:
            matrix: the values, shape [row, column].
            maximum: smallest value that is drawn in the darkest color.
            mark: row and column of the matrix element to emphasize.
        """
        block = -(-max(matrix.shape) // SIDE)
        cell = None if mark is None else (mark[0] // block, mark[1] // block)
        return cls(largest_in_blocks(matrix[None], block)[0], maximum, cell)


@dataclass(frozen=True)
class Curves:
    """A line chart with one value per layer, and a second line for comparison.

    Attributes:
        values, reference: values of the line and of the second line, shape [layer + 1], -1 to 1.
        mark: the layer to emphasize.
    """

    values: Sequence[float]
    reference: Sequence[float]
    mark: int


@dataclass(frozen=True)
class Bars:
    """A bar chart with signed values.

    Attributes:
        values: signed lengths of the bars; the chart is scaled to the longest bar.
        mark: index of the bar to emphasize.
    """

    values: Sequence[float]
    mark: int


@dataclass(frozen=True)
class TextSegments:
    """Segments into which a text is split, in the order of the text."""

    texts: Sequence[str]


Picture: TypeAlias = Grid | Curves | Bars | TextSegments


@dataclass(frozen=True, eq=False)
class HighlightCandidate:
    """A value measured on a text, with the sentence that states it.

    Attributes:
        value: the measured value.
        sentence: sentence that states the value, including the final period.
        page, choices: name and URL parameters, without defaults, of the page that shows the highlight.
        picture: function that returns the thumbnail.
        clear: whether the value is worth reporting; for example, a count of 0 unknown tokens is not.
    """

    value: float
    sentence: str
    page: str
    choices: Mapping[str, str]
    picture: Callable[[], Picture]
    clear: bool = True


@dataclass(frozen=True)
class HighlightType:
    """A type of highlight, with the function that measures its value.

    Attributes:
        name: name of the type in tables; several types may have the same name.
        measure: unique description of the measured value.
        order: sort key of the types; until percentiles are known, highlights are shown in this order.
        find: function that takes one or two contexts and returns a candidate, or None if the value is
            undefined for the text.
        texts: number of texts: 1, or 2 for a comparison of two separate texts.
        single_text_only: whether to skip the type if two texts are given, because the linked page would
            compare the two texts.
        sentences: number of reference sentences on which the type is measured; None for all sentences. Types
            that run the model use fewer sentences.
    """

    name: str
    measure: str
    order: int
    find: Callable[..., HighlightCandidate | None]
    texts: int = 1
    single_text_only: bool = False
    sentences: int | None = None


def highlight_types(texts: int) -> tuple[HighlightType, ...]:
    """Return the highlight types for one text or for two, sorted by their ``order``."""
    return tuple(highlight_type for highlight_type in _load_types() if highlight_type.texts == texts)


@cache
def _load_types() -> tuple[HighlightType, ...]:
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    types: list[HighlightType] = [item for module in modules for item in module.HIGHLIGHT_TYPES]
    return tuple(sorted(types, key=lambda highlight_type: highlight_type.order))


def quote(unit: Token | Unit, units: Sequence[Token | Unit] = ()) -> str:
    """Return a token or word in quotation marks, with its position if ``units`` repeats its text."""
    name = f"“{truncate_text(unit.display)}”"
    same = sum(other.display == unit.display for other in units)
    return f"{name} ({unit.position})" if same > 1 else name


def percent(share: float) -> str:
    """Return a share as a percentage, with one decimal below 10%."""
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f}%"
