"""Check that a checkpoint is the one that a store, or its sentence vectors, were computed with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import numpy as np

from bert_probe.errors import CheckpointError, SelectionError, StoreError, TextError

if TYPE_CHECKING:
    from bert_probe.analyses.vectors.pooling import PoolingConfig
    from bert_probe.corpus.store import Store
    from bert_probe.model.checkpoint import Checkpoint
    from bert_probe.model.trace import Array

_SAMPLE_ROWS: Final = 50
"""Maximum number of rows whose tokens are compared."""
_SAMPLE_CHARACTERS: Final = 1000
"""Maximum length of a compared row, unless all rows are longer."""
_MAX_DIFFERENCE: Final = 0.05
"""Maximum length of the difference of a recomputed vector from the stored one, relative to the stored one.

Rounding errors of float16 and of another machine are smaller; a changed activation function gives 0.13.
"""
_MAX_DIFFERENCE_OF_DTYPES: Final = 0.2
"""The same maximum for a model in another dtype than the store."""


@dataclass(frozen=True, eq=False)
class VectorSample:
    """Stored vectors of one row. They show whether the settings of the model have changed since.

    The digest of the weights does not cover the settings in config.json, such as the activation function. The
    row is the longest one of the first rows, because some settings, such as an attention window, change only
    long texts. For vectors of tokens, only rows of the first file are compared.

    Attributes:
        store: name of the store, for the error message.
        row: number of the row.
        text: text of the row.
        dtype: dtype of the model that computed the vectors.
        vectors: float32 or float16 of shape [vector, size].
    """

    store: str
    row: int
    text: str
    dtype: str
    vectors: Array

    def check(self, checkpoint: Checkpoint, vectors: Array) -> None:
        """Check that a checkpoint computes the stored vectors.

        Args:
            checkpoint: the model.
            vectors: its vectors for the row, of shape [vector, size].

        Raises:
            StoreError: the store has another number of vectors or dimensions.
            CheckpointError: more than half of the vectors differ by more than rounding errors.
        """
        if vectors.shape != self.vectors.shape:
            raise StoreError(
                f"{self.store} is broken: row {self.row} has vectors of shape {list(self.vectors.shape)} "
                f"instead of {list(vectors.shape)}. Build the store again."
            )
        # A number above the range of float16 is stored as infinity.
        is_finite = np.isfinite(self.vectors).all(axis=1)
        stored = self.vectors[is_finite].astype(np.float64)
        is_same_dtype = checkpoint.description.dtype == self.dtype
        allowed = _MAX_DIFFERENCE if is_same_dtype else _MAX_DIFFERENCE_OF_DTYPES
        difference = np.linalg.norm(vectors[is_finite].astype(np.float64) - stored, axis=1)
        is_equal = difference <= allowed * np.linalg.norm(stored, axis=1)
        # In bfloat16, the batch can change a few vectors of a long text by more.
        if 2 * is_equal.sum() < len(is_equal):
            raise CheckpointError(
                f"{self.store} was built with other settings of the model: {checkpoint.description.name} has "
                f"the same weights, but computes another vector for row {self.row}. Open the model with its "
                "original config.json, or build the store again."
            )


@dataclass(frozen=True)
class TokenSample:
    """The tokens of the first rows of a store. They show whether the tokenizer has changed since.

    Attributes:
        store: name of the store, for the error message.
        truncate: whether the store truncates rows that are too long.
        rows: number of the row, text, number of tokens and token IDs of each row. The IDs are None if the
            store contains words instead of tokens.
        layer: the last layer with stored vectors of tokens.
        vectors: vectors of the tokens of one of the rows in this layer; None if they are not stored, or if
            the store contains words.
    """

    store: str
    truncate: bool
    rows: tuple[tuple[int, str, int, tuple[int, ...] | None], ...]
    layer: int = 0
    vectors: VectorSample | None = None
    _checked: WeakSet[Checkpoint] = field(default_factory=WeakSet, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, store: Store) -> TokenSample:
        """Read the tokens of the first 50 rows of at most 1,000 characters, or of the shortest first row.

        Raises:
            StoreError: a table is broken.
        """
        import pyarrow.compute as pc

        from bert_probe.corpus.schema import ROWS, TOKENS, store_errors

        with store_errors(store.folder.name):
            batches = store.table(ROWS).to_batches(columns=["row", "text", "tokens"])
            every_row = (row for batch in batches for row in batch.to_pylist())
            first_rows = [*islice(every_row, 4 * _SAMPLE_ROWS)]
            short_rows = [row for row in first_rows if len(row["text"] or "") <= _SAMPLE_CHARACTERS]
            shortest = sorted(first_rows, key=lambda row: len(row["text"] or ""))[:1]
            sample = short_rows[:_SAMPLE_ROWS] or shortest
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
            texts = {row: text for row, text, _, row_ids in rows if row_ids}
            vectors = _token_vectors(store, texts) if texts and store.layers else None
        return cls(store.folder.name, store.question.truncate, rows, max(store.layers, default=0), vectors)

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint splits the rows into the same tokens, and one row has the same vectors.

        For a store of words, only the number of tokens is compared. Vectors are compared in one layer, if the
        store has vectors.

        Raises:
            CheckpointError: the tokens or the vectors of a row differ.
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
        if self.vectors is not None:
            trace = checkpoint.trace(self.vectors.text, truncate=self.truncate)
            self.vectors.check(checkpoint, trace.vectors(self.layer))
        self._checked.add(checkpoint)


def longest_text(texts: Sequence[str | None]) -> int:
    """Return the index of the longest of the first texts that has at most 1,000 characters; 0 if none has."""
    lengths = [len(text or "") for text in texts[: 4 * _SAMPLE_ROWS]]
    return max(range(len(lengths)), key=lambda index: lengths[index] * (lengths[index] <= _SAMPLE_CHARACTERS))


def _token_vectors(store: Store, texts: Mapping[int, str]) -> VectorSample | None:
    """Return the token vectors of one row in the last stored layer; None if no row has any.

    The row is the one with the longest text among the given rows in the first file that contains any of them.

    Args:
        texts: the text of each given row, by row number.
    """
    import pyarrow as pa

    from bert_probe.corpus.inputs import VECTORS

    for file in store.files(VECTORS):
        parts, part_rows = [], []  # the vectors of a row can be in several batches
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                rows, layers = batch["row"].to_numpy(), batch["layer"].to_numpy()
                selected = np.flatnonzero((layers == max(store.layers)) & np.isin(rows, [*texts]))
                if len(selected):
                    column = batch["vector"].take(pa.array(selected))
                    parts.append(column.flatten().to_numpy().reshape(len(selected), -1))
                    part_rows.append(rows[selected])
        if parts:
            numbers = np.concatenate(part_rows)
            row = max({*numbers.tolist()}, key=lambda number: len(texts[number]))
            dtype = store.manifest["model"]["dtype"]
            return VectorSample(
                store.folder.name, row, texts[row], dtype, np.concatenate(parts)[numbers == row]
            )
    return None


def check_model(store: Store, checkpoint: Checkpoint) -> None:
    """Check that a checkpoint has the weights, the tokenizer and the settings that a store was built with.

    Raises:
        CheckpointError: the weights differ, or the tokens or vectors of one of the first rows; see
            `TokenSample`.
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
        sample: the vector of one row; None if the store has no rows.
    """

    model: str
    weights_sha256: str
    recipe: Mapping[str, Any]
    modules_sha256: str
    tokens: TokenSample
    sample: VectorSample | None = None

    def check(self, store: str, checkpoint: Checkpoint, recipe: PoolingConfig) -> None:
        """Check that the vectors were computed with a checkpoint and with a given pooling.

        Args:
            store: name of the store, for the error message.
            recipe: pooling that the search uses for documents.

        Raises:
            SelectionError: the model or the pooling differs.
            CheckpointError: the tokenizer or the settings of the model differ.
        """
        # Imported here, because importing torch takes seconds.
        from bert_probe.analyses.vectors.sentences import encode_texts

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
        if self.sample is not None:
            encoded = encode_texts(checkpoint, recipe, [self.sample.text], True, lambda _: "A row")
            self.sample.check(checkpoint, encoded.vectors)
