"""Check that a checkpoint is the one that a store, or its sentence vectors, were computed with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from bert_probe.errors import CheckpointError, SelectionError, TextError

if TYPE_CHECKING:
    from bert_probe.analyses.vectors.pooling import PoolingConfig
    from bert_probe.corpus.store import Store
    from bert_probe.model.checkpoint import Checkpoint

_SAMPLE_ROWS: Final = 50
"""Maximum number of rows whose tokens are compared."""
_SAMPLE_CHARACTERS: Final = 1000
"""Maximum length of a compared row; longer rows are skipped."""


@dataclass(frozen=True)
class TokenSample:
    """The tokens of the first rows of a store. They show whether the tokenizer has changed since.

    Attributes:
        store: name of the store, for the error message.
        truncate: whether the store truncates rows that are too long.
        rows: number of the row, text, number of tokens and token IDs of each row. The IDs are None if the
            store contains words instead of tokens.
    """

    store: str
    truncate: bool
    rows: tuple[tuple[int, str, int, tuple[int, ...] | None], ...]
    _checked: WeakSet[Checkpoint] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, store: Store) -> TokenSample:
        """Read the tokens of the first rows of a store, at most 50 and only rows of at most 1,000 characters.

        Raises:
            StoreError: a table is broken.
        """
        import pyarrow.compute as pc

        from bert_probe.corpus.schema import ROWS, TOKENS, store_errors

        with store_errors(store.folder.name):
            batches = store.table(ROWS).to_batches(columns=["row", "text", "tokens"])
            every_row = (row for batch in batches for row in batch.to_pylist())
            sample = [
                row
                for row in islice(every_row, 4 * _SAMPLE_ROWS)
                if len(row["text"] or "") <= _SAMPLE_CHARACTERS
            ][:_SAMPLE_ROWS]
            ids: dict[int, list[int]] = {row["row"]: [] for row in sample}
            if not store.question.words and sample:
                selected = pc.field("row") <= sample[-1]["row"]
                for token in store.table(TOKENS).to_table(["row", "id"], filter=selected).to_pylist():
                    if token["row"] in ids:
                        ids[token["row"]].append(token["id"])
            rows = tuple(
                (
                    row["row"],
                    row["text"],
                    row["tokens"],
                    None if store.question.words else tuple(ids[row["row"]]),
                )
                for row in sample
            )
        return cls(store.folder.name, store.question.truncate, rows)

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that the tokenizer of a checkpoint splits the rows into the same tokens.

        Raises:
            CheckpointError: the tokens of a row differ.
        """
        if checkpoint in self._checked:
            return
        for row, text, count, ids in self.rows:
            try:
                actual = tuple(token.id for token in checkpoint.encode(text, truncate=self.truncate).tokens)
            except TextError:
                actual = ()
            if len(actual) != count or ids not in (None, actual):
                raise CheckpointError(
                    f"{self.store} was built with another tokenizer: {checkpoint.description.name} has the "
                    f"same weights, but splits row {row} into other tokens. Open the model with the "
                    "original tokenizer, or build the store again."
                )
        self._checked.add(checkpoint)


def check_model(store: Store, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint has the weights that a store was built with, and an equal tokenizer.

    Raises:
        CheckpointError: the weights differ, or the tokens of one of the first rows; see `TokenSample`.
        StoreError: a table is broken.
    """
    actual, expected = checkpoint.description.weights_sha256, store.manifest["model"]["weights_sha256"]
    if actual != expected:
        raise CheckpointError(
            f"{store.folder.name} was built with {store.manifest['model']['model']} (weights digest "
            f"{expected[:12]}…), but {checkpoint.description.name} has the digest {actual[:12]}…. Open "
            "the model with the digest of the store, or build the store again."
        )
    store.token_sample.check(checkpoint)


@dataclass(frozen=True)
class VectorOrigin:
    """The model and the pooling with which the sentence vectors of a store were computed.

    Attributes:
        model: name of the model.
        weights_sha256: SHA-256 of the model's weights.
        recipe: settings of the pooling, as in `PoolingConfig.about`.
        modules_sha256: digest of the modules that compute sentence vectors; "" if the checkpoint declares
            none.
        tokens: the tokens of the first rows.
    """

    model: str
    weights_sha256: str
    recipe: Mapping[str, Any]
    modules_sha256: str
    tokens: TokenSample

    def check(self, store: str, checkpoint: Checkpoint, recipe: PoolingConfig) -> None:
        """Check that the vectors were computed with a checkpoint and with a given pooling.

        Args:
            store: name of the store, for the error message.
            recipe: pooling that the search uses for documents.

        Raises:
            SelectionError: the model or the pooling differs.
            CheckpointError: the tokenizer differs.
        """
        name, digest = checkpoint.description.name, checkpoint.description.weights_sha256
        if digest != self.weights_sha256:
            raise SelectionError(
                f"The sentence vectors of {store} were computed with {self.model} (weights digest "
                f"{self.weights_sha256[:12]}…), but {name} has the digest {digest[:12]}…. Choose the model "
                f"that built the store, or build the store again with {name}."
            )
        actual = json.loads(json.dumps(recipe.about))  # as in the manifest: JSON turns tuples into lists
        names = [key for key in actual if self.recipe.get(key) != actual[key]]
        if names or checkpoint.description.sentence_model_sha256 != self.modules_sha256:
            difference = (
                f"{names[0]} is {actual[names[0]]!r} instead of {self.recipe.get(names[0])!r}"
                if names
                else "the files of the model's modules differ"
            )
            raise SelectionError(
                f"The sentence vectors of {store} were pooled differently from the documents of this search: "
                f"{difference}. Use the model's default prompt for documents and all dimensions."
            )
        self.tokens.check(checkpoint)
