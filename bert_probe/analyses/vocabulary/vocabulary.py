"""The vocabulary of a model: all its pieces, searched and counted, and how long their input vectors are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vocabulary.input_vectors import between_pairs, norms_of, table_of
from bert_probe.core.field_types import Choice, FieldType, Flag, Optional
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, read_only
from bert_probe.text import matching
from bert_probe.text.pieces import KINDS, SPECIAL, UNUSED, VocabularyTokens, pieces_of, visible

ALL = "all"
PAIRS = 10_000
"""Of pieces, drawn at random; always the same ones for a vocabulary."""
_SHOWN = ("pieces", "kinds", "scripts")


@question("vocabulary")
class Vocabulary(Question):
    """Which pieces a model knows, of which kinds and scripts, and the length of each one's input vector.

    Attributes:
        search: what is looked for, in a piece as the vocabulary has it and as a person reads it; "" for all.
        match: "contains", "prefix" (begins with it), "exact", or "regex", a regular expression in RE2 syntax.
        case: capitals differ from small letters.
        kind: of `KINDS`, or "all".
        script: of `SCRIPTS`, "none", "several" or "other"; None for all.
        show: "pieces", a row for each; "kinds" or "scripts", how many there are of each.
    """

    inputs = OneCheckpoint()

    search: str = param(FieldType(), default="", about="Pieces in which this is found.", display_only=True)
    match: str = param(
        Choice(matching.MATCHES), default=matching.CONTAINS, about="What --search is.", display_only=True
    )
    case: bool = param(Flag(), default=False, about="Capitals differ from small letters.", display_only=True)
    kind: str = param(
        Choice((ALL, *KINDS)), default=ALL, key="piece_kind", about="Pieces of this kind.", display_only=True
    )
    script: str | None = param(
        Optional(FieldType()), default=None, about="Pieces in this script, such as Latin.", display_only=True
    )
    show: str = param(
        Choice(_SHOWN), default="pieces", key="vocabulary_show", about="What to list.", display_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        matching.check(self.search, self.match, self.case)

    def of(self, checkpoint: Checkpoint) -> VocabularyResult:
        """The pieces of a model.

        Raises:
            UnavailableError: a model without a table of words, or one without two pieces.
        """
        with torch.inference_mode(), checkpoint.running() as model:
            table = table_of(model, checkpoint)
            pieces, norms = pieces_of(checkpoint.encoder, len(table)), norms_of(table)
            unrelated = read_only(np.sort(between_pairs(table, random_pairs(pieces, norms))))
            subject = InputRecord.of_model(checkpoint)
        return VocabularyResult(self, subject, pieces, norms, unrelated, table.shape[1])


@dataclass(frozen=True, eq=False, repr=False)
class VocabularyResult(Result):
    """All pieces of a model's vocabulary.

    Attributes:
        pieces: in the order of their ids.
        norms: the length of each one's input vector, its row in the table of words, float64 [piece].
        unrelated: the cosines of pairs of input vectors drawn at random, in order, float64 [pair].
        dimensions: of these vectors, which some families widen later.
    """

    question: Vocabulary
    pieces: VocabularyTokens
    norms: Array
    unrelated: Array
    dimensions: int

    def __post_init__(self) -> None:
        if self.norms.shape != (len(self.pieces),):
            raise ShapeError(f"norms has shape {self.norms.shape}; [{len(self.pieces)} pieces] is needed.")

    @cached_property
    def found(self) -> tuple[int, ...]:
        """Ids of the pieces that are asked for.

        Raises:
            SelectionError: an expression that takes too long, or a script of which there is no piece.
        """
        kind, script = self.question.kind, self.question.script
        scripts = self.scripts
        if script is not None and script not in scripts:
            raise SelectionError(
                f"There is no piece in the script {script}; there are {', '.join(scripts)}. Choose one of "
                f"them."
            )
        ids = matching.matching(self.pieces, self.question.search, self.question.match, self.question.case)
        return tuple(
            one
            for one in ids
            if kind in (ALL, self.pieces.kinds[one]) and script in (None, self.pieces.scripts[one])
        )

    @cached_property
    def scripts(self) -> tuple[str, ...]:
        """Those of all pieces, the commonest first."""
        return tuple(name for name, _ in Counter(self.pieces.scripts).most_common())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How many pieces there are, and how many were found."""
        return {"pieces": len(self.pieces), "found": len(self.found)}

    @property
    def share(self) -> float:
        """What was found, of all pieces, 0 to 1."""
        return len(self.found) / len(self.pieces)

    def counts(self, of: Sequence[str]) -> dict[str, int]:
        """How many of the pieces that were found are of each kind, or script, the commonest first.

        Args:
            of: `Pieces.kinds` or `Pieces.scripts`.
        """
        return dict(Counter(of[one] for one in self.found).most_common())

    def frame(self) -> pd.DataFrame:
        """A row a piece: id, token, text, kind, script, length, norm; a kind, a script: count, share."""
        show = self.question.show
        if show == "pieces":
            return self.listed(self.found)
        counts = self.counts(self.pieces.kinds if show == "kinds" else self.pieces.scripts)
        shares = [count / len(self.found) for count in counts.values()]
        return pd.DataFrame(
            {
                show[:-1]: pd.Series([*counts], dtype=object),
                "count": pd.Series([*counts.values()], dtype=np.int64),
                "share": pd.Series(shares, dtype=np.float64),
            }
        )

    def listed(self, ids: Sequence[int]) -> pd.DataFrame:
        """One row for each of some pieces, as in `frame`."""
        pieces = self.pieces
        return pd.DataFrame(
            {
                "id": np.array(ids, dtype=np.int64),
                "token": pd.Series([pieces.names[one] for one in ids], dtype=object),
                "text": pd.Series([visible(pieces.texts[one]) for one in ids], dtype=object),
                "kind": pd.Series([pieces.kinds[one] for one in ids], dtype=object),
                "script": pd.Series([pieces.scripts[one] for one in ids], dtype=object),
                "length": np.array([len(pieces.texts[one]) for one in ids], dtype=np.int64),
                "norm": self.norms[list(ids)],
            }
        )


def random_pairs(pieces: VocabularyTokens, norms: Array) -> Array:
    """Ids [pair, 2] of two different pieces each, neither special nor unused, both with a direction.

    Raises:
        UnavailableError: a vocabulary without two such pieces.
    """
    usable = np.array(
        [
            number
            for number, kind in enumerate(pieces.kinds)
            if kind not in (SPECIAL, UNUSED) and norms[number] > 0
        ]
    )
    if len(usable) < 2:
        raise UnavailableError("This vocabulary has no two pieces to compare.")
    draw = np.random.default_rng(0)
    first = draw.integers(len(usable), size=PAIRS)
    # The second is any but the first.
    second = (first + draw.integers(1, len(usable), size=PAIRS)) % len(usable)
    return np.stack([usable[first], usable[second]], axis=1)
