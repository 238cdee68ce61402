"""The effect of the position of a passage within a document on the score of the document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.retrieval.chunked_search import read_limit, sentence_spans
from bert_probe.analyses.retrieval.scorers import PromptedSearch
from bert_probe.analyses.vectors.pooling import PoolingConfig
from bert_probe.analyses.vectors.sentences import encode_texts
from bert_probe.analyses.vectors.similarity import scores_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number, Optional, Text
from bert_probe.core.inputs import DocumentFile
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import MAX_TOKENS
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document, DocumentList, as_documents

RESAMPLES = 1000
"""Number of bootstrap resamples of the documents, for the confidence interval of a mean change."""
MAX_CHARACTERS = 1_000_000_000
"""Maximum number of characters of all changed documents, which are in memory at once."""
_SEED = 0


@question("position effect", command="position-effect")
class PositionEffect(PromptedSearch):
    """Change of a document's score if sentences are removed or inserted at different positions.

    Without a passage, one group of consecutive sentences is removed at a time. A passage is inserted
    between two sentences, at one position at a time. Embedding models often give the beginning of a text
    more weight (Lee, Goel and Ramchandran 2024).

    Attributes:
        query: the query with which documents are scored; by default, each changed document is compared with
            the original document.
        passage: a passage to insert; by default, sentences are removed.
        positions: maximum number of groups of sentences to remove from a document, or of intervals between
            the positions at which the passage is inserted; also the number of bins of the curve.
        prompt, document_prompt, dimensions: see `PromptedSearch`.
        show: the table to return: "curve" with the mean change in each bin of positions, or "documents" with
            every changed document.
    """

    inputs = DocumentFile()

    query: str | None = param(
        Optional(Text()),
        default=None,
        about="Compare documents with this query instead of the original document.",
    )
    passage: str | None = param(
        Optional(Text()), default=None, about="Insert this passage instead of removing sentences."
    )
    positions: int = param(
        Number(2, 20),
        default=10,
        about="Maximum number of positions at which sentences are removed or the passage is inserted.",
    )
    show: str = param(
        Choice(("curve", "documents")),
        default="curve",
        display_only=True,
        key="position_show",
        about="Table: the mean change by position, or each changed document.",
    )

    def of(
        self, checkpoint: Checkpoint, documents: Sequence[str], progress: Progress = no_progress
    ) -> PositionEffectResult:
        """Score every document with sentences removed, or with the passage inserted, at several positions.

        Documents are left out if they have only one sentence, or if the model would truncate them.

        Args:
            checkpoint: the model.
            documents: the documents.
            progress: called with the number of distinct texts done and the total.

        Raises:
            TextError, EmptyTextError, TooLongError: a text cannot be encoded, there are no documents, or two
                of them have the same ID.
            UnavailableError: no document has at least two sentences and fits into the model's input, or the
                changed documents have more than `MAX_CHARACTERS` characters; see also `resolve_pooling`.
            SelectionError, CheckpointError: see `resolve_pooling`.
            OutOfMemoryError: a batch or the vectors need more memory than is available.
        """
        checkpoint, texts = checkpoint.snapshot(), as_documents(documents)
        recipe = self.document_pooling(checkpoint)
        query_recipe = self.query_pooling(checkpoint)
        variants = self._variants(checkpoint, recipe, texts, progress)
        used = list(dict.fromkeys(variant.document for variant in variants))
        changed = [*(str(texts[index]) for index in used), *(variant.text for variant in variants)]
        with memory_errors(
            "The vectors of these documents need more memory than is available. Use fewer documents."
        ):
            encoded = encode_texts(checkpoint, recipe, changed, False, "Text {:,}".format, progress).vectors
            original_rows, rows = encoded[: len(used)], encoded[len(used) :]
            row_of = {index: row for row, index in enumerate(used)}
            originals = original_rows[[row_of[variant.document] for variant in variants]]
            if self.query is None:
                compared, reference = originals, originals
            else:
                vector = encode_texts(checkpoint, query_recipe, [self.query], False, lambda _: "The query")
                compared = reference = np.broadcast_to(vector.vectors, originals.shape)
            scores = scores_of_rows(rows, compared, recipe.similarity)
            before = scores_of_rows(originals, reference, recipe.similarity)
        return PositionEffectResult(
            self,
            InputRecord.of_documents(checkpoint, texts, 0),
            texts,
            variants,
            read_only(scores),
            read_only(scores - before),
            recipe,
        )

    def _variants(
        self, checkpoint: Checkpoint, recipe: PoolingConfig, texts: Sequence[Document], progress: Progress
    ) -> tuple[Variant, ...]:
        limit = read_limit(checkpoint, recipe)
        variants: list[Variant] = []
        characters = 0
        for index, text in enumerate(texts):
            progress(0, len(texts))
            options = [*self._changes(index, str(text))]
            if not options:
                continue
            longest = [str(text), *(variant.text for variant in options if self.passage is not None)]
            try:
                if not _fit(checkpoint, recipe, longest, limit, lambda: progress(0, len(texts))):
                    continue
            except TextError as error:
                raise type(error)(f"Document {index + 1:,}: {error}") from None
            variants += options
            characters += sum(len(variant.text) for variant in options)
            if characters > MAX_CHARACTERS:
                raise UnavailableError(
                    f"All changed documents together have more than {MAX_CHARACTERS:,} characters. Use fewer "
                    "documents, fewer positions, or a shorter passage."
                )
        if not variants:
            raise UnavailableError(
                f"No document has at least two sentences and at most {limit:,} tokens"
                f"{' with the passage' if self.passage is not None else ''}. Use other documents."
            )
        return tuple(variants)

    def _changes(self, index: int, text: str) -> Iterator[Variant]:
        """Yield each variant of a document, in the order of the positions.

        Args:
            index: index of the document, from 0.
            text: the text of the document.
        """
        spans = sentence_spans(text)
        count = len(spans)
        if count < 2:
            return
        if self.passage is None:
            # Bounds of consecutive groups of sentences, of sizes that differ by at most 1.
            bounds = np.linspace(0, count, min(count, self.positions) + 1).round().astype(int)
            for first, last in pairwise(bounds):
                start, end = spans[first][0], spans[last - 1][1]
                remaining = f"{text[:start].rstrip()} {text[end:].lstrip()}".strip()
                yield Variant(index, (start + end) / 2 / len(text), remaining, text[start:end])
            return
        for place in np.unique(np.linspace(0, count, self.positions + 1).round().astype(int)):
            start = spans[place][0] if place < count else len(text)
            parts = (text[:start].rstrip(), self.passage.strip(), text[start:].lstrip())
            yield Variant(index, start / len(text), " ".join(filter(None, parts)), self.passage)


def _fit(
    checkpoint: Checkpoint,
    recipe: PoolingConfig,
    texts: Sequence[str],
    limit: int,
    report: Callable[[], None],
) -> bool:
    """Return whether all texts have at most ``limit`` tokens; stop at the first text that has more.

    Args:
        report: called before each text.
    """
    for text in texts:
        report()
        if _count_tokens(checkpoint, recipe, text) > limit:
            return False
    return True


def _count_tokens(checkpoint: Checkpoint, recipe: PoolingConfig, text: str) -> int:
    inputs = checkpoint.encoder.inputs(recipe.text(text), max_tokens=MAX_TOKENS, truncate=True)
    return len(inputs) + inputs.dropped


@dataclass(frozen=True)
class Variant:
    """A document from which sentences were removed, or into which a passage was inserted.

    Attributes:
        document: index of the document, from 0.
        position: position of the change, from 0 for the first character of the document to 1 for the last:
            the middle of the removed text, or the start of the inserted passage.
        text: the changed document.
        part: the text that was removed or inserted.
    """

    document: int
    position: float
    text: str
    part: str


@dataclass(frozen=True, eq=False, repr=False)
class PositionEffectResult(Result):
    """Scores of changed documents.

    Attributes:
        documents: all documents, in their original order.
        variants: the changed documents, in the order of the documents and then of the positions.
        scores: the score of each changed document with the query, or with the original document, of shape
            [variant].
        changes: each score minus the score of the original document, of shape [variant].
        recipe: the pooling configuration of the documents.
    """

    question: PositionEffect
    documents: DocumentList
    variants: tuple[Variant, ...]
    scores: Array
    changes: Array
    recipe: PoolingConfig

    def __post_init__(self) -> None:
        if {self.scores.shape, self.changes.shape} != {(len(self.variants),)}:
            raise ShapeError(
                f"scores and changes must have shape ({len(self.variants)},), not {self.scores.shape} and "
                f"{self.changes.shape}."
            )

    @property
    def used(self) -> int:
        """Number of documents that were changed."""
        return len({variant.document for variant in self.variants})

    @cached_property
    def curve(self) -> pd.DataFrame:
        """Mean change of the score from the original to the changed document, in bins of the position.

        Columns: position_from and position_to (the bounds of the bin, 0 to 1), texts (number of changed
        documents), documents (number of original documents), change (the mean), low and high (its 95%
        interval, from a percentile bootstrap over documents); change, low and high are NaN in an empty bin.
        """
        count = self.question.positions
        bins = np.minimum((np.array([v.position for v in self.variants]) * count).astype(int), count - 1)
        rows = np.unique([v.document for v in self.variants], return_inverse=True)[1]
        sums, texts = np.zeros((rows.max() + 1, count)), np.zeros((rows.max() + 1, count))
        np.add.at(sums, (rows, bins), self.changes)
        np.add.at(texts, (rows, bins), 1)
        random = np.random.default_rng(_SEED)
        weights = random.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=RESAMPLES)
        with np.errstate(invalid="ignore"):
            means = (weights @ sums) / (weights @ texts)
            change = sums.sum(axis=0) / texts.sum(axis=0)
        bounds = np.full((2, count), np.nan)
        filled = ~np.isnan(change)
        bounds[:, filled] = np.nanpercentile(means[:, filled], [2.5, 97.5], axis=0)
        edges = np.arange(count + 1) / count
        return pd.DataFrame(
            {
                "position_from": edges[:-1],
                "position_to": edges[1:],
                "texts": texts.sum(axis=0).astype(np.int64),
                "documents": (texts > 0).sum(axis=0),
                "change": change,
                "low": bounds[0],
                "high": bounds[1],
            }
        )

    @property
    def finding(self) -> str:
        """A sentence that compares the mean changes at the start and at the end of each document."""
        action = "Removing a part" if self.question.passage is None else "Inserting the passage"
        score = f"the {self.recipe.score_name}"
        subject = "the original document" if self.question.query is None else "the query"
        # The variants of a document are sorted by position. The first and the last bin of the curve would not
        # contain short documents, in which the middle of the first part is far from the start.
        documents = [variant.document for variant in self.variants]
        ends = {document: row for row, document in enumerate(documents)}
        starts = {document: row for row, document in reversed([*enumerate(documents)])}
        first, last = (float(self.changes[[*rows.values()]].mean()) for rows in (starts, ends))
        # A ratio of changes with different signs would have no clear meaning.
        ratio = f", which is {first / last:.2f} times the change at the end" if first * last > 0 else ""
        return (
            f"{action} at the start changes {score} with {subject} by {first:+.4f} on average, at the end by "
            f"{last:+.4f}{ratio} ({self.used:,} documents)."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the numbers of documents used and left out, and the number of bootstrap resamples."""
        return {
            "recipe": self.recipe.about,
            "documents_used": self.used,
            "documents_left_out": len(self.documents) - self.used,
            "resamples": RESAMPLES,
            "seed": _SEED,
            **self.documents.about_skipped,
        }

    def frame(self) -> pd.DataFrame:
        """Return `curve` if `question.show` is "curve"; otherwise one row per changed document.

        The columns are document (ID), position, score, change, and part (the removed or inserted text).
        """
        if self.question.show == "curve":
            return self.curve
        return pd.DataFrame(
            {
                "document": frames.plain_strings([self.documents[v.document].id for v in self.variants]),
                "position": [variant.position for variant in self.variants],
                "score": self.scores,
                "change": self.changes,
                "part": frames.plain_strings([variant.part for variant in self.variants]),
            }
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, the form in which view files store them."""
        return tuple(document.line for document in self.documents)

    @property
    def nbytes(self) -> int:
        """Size of the scores and the changed texts in bytes."""
        texts = sum(len(variant.text) + len(variant.part) for variant in self.variants)
        return self.scores.nbytes + self.changes.nbytes + 2 * texts
