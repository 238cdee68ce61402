"""The pieces of a vocabulary whose input vectors are most like one's, and what two of them have by chance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vocabulary.input_vectors import nearest, table_of
from bert_probe.analyses.vocabulary.vocabulary import Vocabulary, VocabularyResult
from bert_probe.core.field_types import Dimensions, FieldType, Number
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, read_only
from bert_probe.text.pieces import VocabularyTokens, visible

MOST = 1_000
_ID = re.compile(r"id:([0-9]{1,9})")


class VocabularyToken(FieldType):
    """A piece of the vocabulary: its name, or a word that is a single piece; its id, for people id:2314."""

    metavar = "WORD|id:N"

    def check(self, name: str, value: Any) -> Any:
        """A name or an id."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
            raise SelectionError(f"{name} must be a piece or its id, not {value!r}.")
        if not isinstance(value, str):
            return int(value)
        number = _ID.fullmatch(value)
        return int(number[1]) if number else value

    def write(self, value: Any) -> str:
        """The name, or id: and the id."""
        return f"id:{value}" if isinstance(value, int) else str(value)

    def to_json(self, value: Any) -> Any:
        """As it is written."""
        return self.write(value)

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """What `plain` gave: a text, whatever it names."""
        return self.check(name, super().check(name, value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """What `write` wrote."""
        return self.check(name, text)


@question("neighbours in the vocabulary", command="neighbors")
class Neighbors(Question):
    """The pieces whose input vector has the highest cosine with that of one.

    Attributes:
        token: a piece as the vocabulary has it, a word that is one piece, or an id.
        count: how many neighbours.
    """

    inputs = OneCheckpoint()

    token: int | str = param(VocabularyToken(), key="near", about="A token of the vocabulary.")
    count: int = param(Number(1, MOST), default=20, about="Number of neighbors.  [default: 20]")

    def of(self, checkpoint: Checkpoint, vocabulary: VocabularyResult | None = None) -> NeighborsResult:
        """Those of a piece.

        Args:
            vocabulary: the answer to `Vocabulary` where it is at hand already, of the same model.

        Raises:
            SelectionError: no such piece.
            UnavailableError: a vector of zeros; or see `Vocabulary.of`.
        """
        checkpoint = checkpoint.now()
        whole = Vocabulary().of(checkpoint) if vocabulary is None else vocabulary
        one = self._find(checkpoint, whole.pieces)
        if not whole.norms[one] > 0:
            name = visible(whole.pieces.names[one])
            raise UnavailableError(f"The input vector of {name} is all zeros, which has no direction.")
        with torch.inference_mode(), checkpoint.running() as model:
            ids, cosines = nearest(table_of(model, checkpoint), whole.norms, one, self.count)
        asked_for = replace(self, token=named(whole.pieces, one))
        return NeighborsResult(asked_for, whole.inputs, whole, one, read_only(ids), read_only(cosines))

    def _find(self, checkpoint: Checkpoint, pieces: VocabularyTokens) -> int:
        if isinstance(self.token, int):
            if not 0 <= self.token < len(pieces):
                raise SelectionError(
                    f"There is no piece {self.token:,}: ids are 0 to {len(pieces) - 1:,}. Give one of them."
                )
            return self.token
        found = find_piece(pieces, self.token)
        if found is None:
            raise SelectionError(_not_one(checkpoint, self.token))
        return found


@dataclass(frozen=True, eq=False, repr=False)
class NeighborsResult(Result):
    """The neighbours of a piece by their input vectors, nearest first.

    Attributes:
        vocabulary: all pieces, the lengths of their input vectors, and the cosines of random pairs.
        one: id of the piece that was asked about.
        ids: its neighbours.
        cosines: theirs with it, float64.
    """

    question: Neighbors
    vocabulary: VocabularyResult
    one: int
    ids: Array
    cosines: Array

    def __post_init__(self) -> None:
        if self.ids.shape != self.cosines.shape:
            raise ShapeError(f"{self.ids.shape} ids and {self.cosines.shape} cosines do not fit together.")

    @property
    def pieces(self) -> VocabularyTokens:
        """Of the vocabulary."""
        return self.vocabulary.pieces

    @property
    def norms(self) -> Array:
        """The length of each piece's input vector, float64 [piece]."""
        return self.vocabulary.norms

    @property
    def unrelated(self) -> Array:
        """The cosines of pairs drawn at random, in order, float64."""
        return self.vocabulary.unrelated

    @property
    def name(self) -> str:
        """The piece, as it can be shown."""
        return visible(self.pieces.names[self.one])

    def names(self) -> list[str]:
        """The neighbours, as they can be shown."""
        return [visible(self.pieces.names[one]) for one in self.ids.tolist()]

    @property
    def norm(self) -> float:
        """The length of its input vector."""
        return float(self.norms[self.one])

    @property
    def norm_rank(self) -> float:
        """The share of all pieces whose input vector is shorter, 0 to 1."""
        return float((self.norms < self.norm).mean())

    @property
    def mean(self) -> float:
        """Of the pairs drawn at random."""
        return float(self.unrelated.mean())

    def percentile(self, share: float) -> float:
        """The cosine below which this share of the pairs drawn at random lies."""
        return float(np.quantile(self.unrelated, share))

    def below(self, cosines: Array) -> Array:
        """The share of the pairs drawn at random whose cosine is lower, 0 to 1."""
        found: Array = np.searchsorted(self.unrelated, cosines) / len(self.unrelated)
        return found

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The piece, its norm, and what pairs drawn at random reach."""
        random = {f"p{share}": self.percentile(share / 100) for share in (5, 50, 95)}
        return {
            "id": self.one,
            "norm": self.norm,
            "shorter": self.norm_rank,
            "unrelated": {"pairs": len(self.unrelated), "mean": self.mean, **random},
        }

    def frame(self) -> pd.DataFrame:
        """One row a neighbour: rank, id, token, text, kind, cosine, unrelated_below, norm."""
        ids = self.ids.tolist()
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(ids) + 1),
                "id": self.ids,
                "token": pd.Series([self.pieces.names[one] for one in ids], dtype=object),
                "text": pd.Series([visible(self.pieces.texts[one]) for one in ids], dtype=object),
                "kind": pd.Series([self.pieces.kinds[one] for one in ids], dtype=object),
                "cosine": self.cosines,
                "unrelated_below": self.below(self.cosines),
                "norm": self.norms[self.ids],
            }
        )


def find_piece(pieces: VocabularyTokens, name: str) -> int | None:
    """Id of the piece that a person names, None where there is none: as the vocabulary has it; else as a
    person reads it, at a word's beginning before others; else the same in small letters."""
    space = pieces.marks.space
    for written in (name, name.lower()):
        if written in pieces.ids:
            return pieces.ids[written]
        alike = [number for number, text in enumerate(pieces.texts) if text == written]
        if alike:
            return next((one for one in alike if space and pieces.names[one].startswith(space)), alike[0])
    return None


def named(pieces: VocabularyTokens, one: int) -> int | str:
    """What finds a piece again wherever it is written: its name, or its id where that cannot be."""
    name = pieces.names[one]
    return name if name and name.isprintable() and not _ID.fullmatch(name) else one


def _not_one(checkpoint: Checkpoint, name: str) -> str:
    if not name.strip():
        return "No piece is named. Give one, such as river."
    if len(name) > 200:
        return f"A piece of {len(name):,} characters is in no vocabulary. Give a shorter one."
    tokens = [token for token in checkpoint.encode(name, truncate=True).tokens if not token.special]
    listed = ", ".join(visible(str(token)) for token in tokens[:12])
    return (
        f"{visible(name)} is no piece of this vocabulary; as a text it becomes {listed}. Give one of these."
    )
