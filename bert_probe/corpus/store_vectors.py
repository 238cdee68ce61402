"""Sentence vectors of a store: the stored sentence vectors, or the means of the stored token vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_probe.analyses.vectors.pooling import PoolingConfig
from bert_probe.corpus.inputs import SENTENCE_VECTORS, VECTORS
from bert_probe.corpus.schema import ROWS, store_errors
from bert_probe.corpus.store import Store
from bert_probe.corpus.vector_index import LayerVectors
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, no_progress


@dataclass(frozen=True)
class VectorOrigin:
    """The model and the pooling that computed the sentence vectors of a store.

    Attributes:
        model: name of the model.
        weights_sha256: digest of its weights.
        recipe: `PoolingConfig.about` of the pooling.
        modules_sha256: digest of the modules that compute sentence vectors; "" if the checkpoint declares
            none.
    """

    model: str
    weights_sha256: str
    recipe: Mapping[str, Any]
    modules_sha256: str

    def check(self, store: str, checkpoint: Checkpoint, recipe: PoolingConfig) -> None:
        """Check that a checkpoint computes such vectors of documents.

        Args:
            store: name of the store, for the error message.
            recipe: how the checkpoint pools documents.

        Raises:
            SelectionError: the model or the pooling differs.
        """
        name, digest = checkpoint.description.name, checkpoint.description.weights_sha256
        if digest != self.weights_sha256:
            raise SelectionError(
                f"The sentence vectors of {store} were computed with {self.model} (weights digest "
                f"{self.weights_sha256[:12]}…), but {name} has the digest {digest[:12]}…. Choose the model "
                "of the store, or run the corpus again with this model."
            )
        actual = json.loads(json.dumps(recipe.about))  # as in the manifest
        names = [key for key in actual if self.recipe.get(key) != actual[key]]
        if names or checkpoint.description.sentence_model_sha256 != self.modules_sha256:
            difference = (
                f"{names[0]} is {actual[names[0]]!r} instead of {self.recipe.get(names[0])!r}"
                if names
                else "the files of its modules differ"
            )
            raise SelectionError(
                f"The sentence vectors of {store} have another pooling than the documents of this search: "
                f"{difference}. Use the model's default prompt for documents and all dimensions."
            )


def read_columns(store: Store, progress: Progress = no_progress) -> dict[str, Any]:
    """Return the arguments of `make_vector_set` for the vectors of the sentences of a store.

    They are the sentence vectors, or the means of the token vectors if the store has no sentence vectors.
    `vector_files` makes the set, because this module would otherwise import the module that imports it.

    Args:
        progress: called with the number of vectors' bytes read and their total.

    Raises:
        UnavailableError: the store has no vectors.
        StoreError: the store is broken.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    if not store.has(SENTENCE_VECTORS):
        return _mean_vectors(store, progress)
    name, description, count = store.folder.name, store.manifest["sentence_vectors"], store.rows
    size = 4 * count * description["size"]
    with store_errors(name), reserved_memory(size, name, "Use a smaller store."):
        vectors = np.empty((count, description["size"]), np.float32)
        numbers, dropped, done = np.empty(count, np.int64), np.empty(count, np.int64), 0
        for batch in store.table(SENTENCE_VECTORS).to_batches():
            if any(column.null_count for column in (*batch.columns, batch["vector"].flatten())):
                raise ValueError("a sentence without a vector")
            block = slice(done, done + len(batch))
            vectors[block] = batch["vector"].flatten().to_numpy().reshape(len(batch), -1)
            numbers[block], dropped[block] = batch["row"].to_numpy(), batch["tokens_dropped"].to_numpy()
            done += len(batch)
            progress(done * size // count, size)
        rows = store.table(ROWS).to_table(columns=["row", "text"])
        if done != count or not np.array_equal(rows["row"].to_numpy(), numbers):
            raise ValueError("the tables have different sentences")
        model = store.manifest["model"]
        origin = VectorOrigin(
            model["model"],
            model["weights_sha256"],
            description["recipe"],
            model.get("sentence_model_sha256", ""),
        )
        digest = hashlib.sha256(f"{store.digest} {SENTENCE_VECTORS}".encode()).hexdigest()
        texts = rows["text"].to_pylist()
    return {
        "vectors": vectors,
        "ids": numbers,
        "texts": texts,
        "dropped": dropped,
        "digest": digest,
        "pooling": "model" if origin.modules_sha256 and not description["recipe"].get("prefix") else None,
        "origin": origin,
    }


def _mean_vectors(store: Store, progress: Progress) -> dict[str, Any]:
    """Return the mean of the stored token vectors of each sentence, in the last layer with stored vectors.

    With whole words, it is the mean of the vectors of the words.

    Raises:
        UnavailableError: the store has no vectors.
        StoreError: the store is broken.
        OutOfMemoryError: the vectors do not fit into memory.
    """
    if not store.layers:
        raise UnavailableError(
            f"{store.folder.name} has no vectors. Build the store with --keep profiles,sentence_vectors, or "
            "use a file of vectors."
        )
    layer = max(store.layers)
    with store_errors(store.folder.name):
        tokens = LayerVectors(store.files(VECTORS), layer)
        rows = store.table(ROWS).to_table(columns=["row", "text", "tokens_dropped"])
        numbers = rows["row"].to_numpy()
        size = 12 * len(numbers) * tokens.hidden
        with reserved_memory(size, store.folder.name, "Use a smaller store."):
            means = np.zeros((len(numbers), tokens.hidden))
            counts = np.zeros((len(numbers), 1))
            for done, batch in enumerate(tokens.batches):
                progress(done, len(tokens.batches))
                batch.file.check()
                starts = np.flatnonzero(np.r_[True, batch.rows[1:] != batch.rows[:-1]])
                indices = np.searchsorted(numbers, batch.rows[starts])
                means[indices] += np.add.reduceat(batch.vectors, starts, axis=0, dtype=np.float64)
                counts[indices, 0] += np.diff(np.r_[starts, len(batch.rows)])
            means = (means / np.maximum(counts, 1)).astype(np.float32)
        texts, dropped = rows["text"].to_pylist(), rows["tokens_dropped"].to_numpy()
    unit = "word" if store.question.words else "token"
    note = (
        f"{store.folder.name} has no sentence vectors (--keep sentence_vectors). The means of its {unit} "
        f"vectors in layer {layer} are used, which may differ from the model's own pooling."
    )
    is_mean_pooling = layer == store.manifest["sizes"]["layers"] and not store.question.words
    pooling = "mean" if is_mean_pooling else None
    return {
        "vectors": means,
        "ids": numbers,
        "texts": texts,
        "dropped": dropped,
        "note": note,
        "pooling": pooling,
    }
