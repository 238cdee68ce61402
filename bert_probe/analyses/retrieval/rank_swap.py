"""The words whose removal or addition swaps the ranks of two documents."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.retrieval.scorers import PromptedSearch
from bert_probe.analyses.retrieval.search import BI_ENCODER, BM25_SCORER, SCORERS, IndexedDocuments, Search
from bert_probe.analyses.retrieval.swap_scorers import (
    MODEL_SCORERS,
    ScoreTexts,
    SwapScorer,
    WordContributions,
    WordScorer,
)
from bert_probe.analyses.vectors.pooling import PoolingConfig
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Name, Number, Optional, Text
from bert_probe.core.inputs import Documents
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document, DocumentList, as_documents

MAX_WORDS = 5
"""Maximum number of words that are removed or added."""
MAX_CANDIDATES = 200
"""Maximum number of words whose removal or addition is tested in one step."""
_IDEOGRAPH = "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_LETTERS = rf"(?:(?!{_IDEOGRAPH})\w)+"
_WORD = re.compile(rf"{_IDEOGRAPH}|{_LETTERS}(?:['’-]{_LETTERS})*")


@question("rank swap", command="swap")
class RankSwap(PromptedSearch):
    """The words whose removal from a document, or addition to the query, ranks another document above it.

    Each step removes (or adds) the word that lowers the difference between the two scores most, until the
    documents are swapped or the maximum number of words is reached. If a single word suffices, the search
    finds it. A smaller set of words can exist if the search returns several words.

    Attributes:
        query: the query.
        document, against: IDs of the two documents; by default, the two documents with the highest scores.
            A document without an ID is identified by its number, counted from 1. The document with the higher
            score is A, the other document B.
        scorer: a name in `SCORERS`.
        max_words: maximum number of words.
        prompt, document_prompt, dimensions: see `PromptedSearch`.
    """

    inputs = Documents()

    query: str = param(Text(), positional=True, about="The query.")
    document: str | None = param(
        Optional(Name()), default=None, about="ID of a document; by default, the top-ranked document."
    )
    against: str | None = param(
        Optional(Name()),
        default=None,
        about="ID of the other document; by default, the highest-ranked other document.",
    )
    scorer: str = param(Choice(SCORERS), default=BI_ENCODER, about="The scorer.")
    max_words: int = param(
        Number(1, MAX_WORDS), default=MAX_WORDS, about="Maximum number of words to remove or add."
    )

    def of(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str] | IndexedDocuments,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> RankSwapResult:
        """Search for the words whose removal or addition swaps the documents.

        Args:
            checkpoint: the model.
            documents: all documents of the search, or the result of `Search.index` for them.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of tested texts and the largest possible number.

        Raises:
            SelectionError: there is no document with a selected ID, both IDs are the same, or there is only
                one document; see also `resolve_pooling`.
            UnavailableError, CheckpointError: see `Search.of`.
            TextError, EmptyTextError, TooLongError: a text cannot be encoded.
        """
        checkpoint = checkpoint.snapshot()
        texts = documents.documents if isinstance(documents, IndexedDocuments) else as_documents(documents)
        search = Search(
            self.query,
            (self.scorer,),
            prompt=self.prompt,
            document_prompt=self.document_prompt,
            dimensions=self.dimensions,
        )
        pair = self._pair(search, checkpoint, documents, texts, truncate, progress)
        word_search = _WordSearch(
            self.query,
            texts[pair[0]],
            texts[pair[1]],
            self._scorer(search, checkpoint, texts, pair, truncate),
            partial(self._scores_of_change, search, checkpoint, texts, pair, truncate),
            self.max_words,
            progress,
        )
        steps = word_search.run()
        scorer = word_search.scorer
        return RankSwapResult(
            self,
            InputRecord.of_documents(checkpoint, texts, scorer.dropped),
            texts,
            pair,
            steps,
            scorer.recipe,
        )

    def _scorer(
        self,
        search: Search,
        checkpoint: Checkpoint,
        texts: DocumentList,
        pair: tuple[int, int],
        truncate: bool,
    ) -> SwapScorer:
        """Return an object that scores documents A and B again when A or the query is changed.

        Args:
            pair: indices of A and B in ``texts``.
        """
        if self.scorer == BM25_SCORER:
            return WordScorer(texts, *pair, self.query)
        a, b = (texts[index] for index in pair)
        return MODEL_SCORERS[self.scorer](search, checkpoint, a, b, truncate)

    def _scores_of_change(
        self,
        search: Search,
        checkpoint: Checkpoint,
        texts: DocumentList,
        pair: tuple[int, int],
        truncate: bool,
        text: str,
        query: str,
    ) -> Array:
        """Return the scores of A and B, [2], as `Search` computes them for ``text`` as A and ``query``."""
        a, b = (texts[index] for index in pair)
        # A BM25 score depends on all documents; other scorers read only the query and the scored document.
        places, collection = (pair, texts) if self.scorer == BM25_SCORER else ((0, 1), DocumentList((a, b)))
        changed = [
            Document(text, a.id) if place == places[0] and text != a else document
            for place, document in enumerate(collection)
        ]
        result = replace(search, query=query).of(checkpoint, changed, truncate)
        values: Array = result.scores[self.scorer][list(places)].astype(np.float64)
        return values

    def _pair(
        self,
        search: Search,
        checkpoint: Checkpoint,
        documents: Sequence[str] | IndexedDocuments,
        texts: DocumentList,
        truncate: bool,
        progress: Progress,
    ) -> tuple[int, int]:
        """Return the indices of the two selected documents, the document with the higher score first."""
        if len(texts) < 2:
            raise SelectionError("There is only one document. Use at least two documents.")
        numbers = {document.id: index for index, document in enumerate(texts)}
        names = [name for name in (self.document, self.against) if name is not None]
        for name in names:
            if name not in numbers:
                raise SelectionError(
                    f"There is no document with the ID {name[:100]!r}. A document without an ID is "
                    "identified by its number, counted from 1."
                )
        if len(names) == 2 and names[0] == names[1]:
            raise SelectionError(
                f"Both documents have the ID {names[0][:100]!r}. Choose two different documents."
            )
        selected = [numbers[name] for name in names]
        if len(selected) == 2 and self.scorer != BM25_SCORER:
            compared = search.of(checkpoint, [texts[index] for index in selected], truncate)
            ranks = dict(zip(selected, compared.ranks[self.scorer], strict=True))
            scores = dict(zip(selected, compared.scores[self.scorer], strict=True))
        else:
            result = search.of(checkpoint, documents, truncate, progress)
            ranks, scores = (dict(enumerate(values[self.scorer])) for values in (result.ranks, result.scores))
            order = sorted(ranks, key=ranks.__getitem__)
            selected += [index for index in order if index not in selected][: 2 - len(selected)]
        for index in selected:
            if np.isnan(scores[index]):
                raise SelectionError(
                    f"Document {texts[index].id[:100]} has no score, because none of its tokens has a "
                    "vector. Choose another document."
                )
        first, second = sorted(selected, key=ranks.__getitem__)
        return first, second


@dataclass
class _WordSearch:
    """The search for words whose removal or addition swaps two documents.

    Attributes:
        query: the query.
        a: the document with the higher score.
        b: the other document.
        scorer: computes the scores of changed texts.
        verify: returns the scores of A and B as `Search` computes them, given the text of A and the query.
        max_words: maximum number of words.
        progress: called with the number of tested texts and the largest possible number.
    """

    query: str
    a: Document
    b: Document
    scorer: SwapScorer
    verify: Callable[[str, str], Array]
    max_words: int
    progress: Progress
    _total: int = field(default=0, init=False)  # largest possible number of tested texts
    _done: int = field(default=0, init=False)  # number of tested texts

    def run(self) -> dict[str, SwapSteps]:
        """Return the steps of removing words from the document, and of adding words to the query."""
        removable, addable = len(_spans(self.a)), len(_lacking(self.b, self.query))
        first = self.max_words * min(MAX_CANDIDATES, removable)
        self._total, self._done = first + self.max_words * min(MAX_CANDIDATES, addable), 0
        removal = self._remove()
        self._done = first  # Report skipped removals as done, too.
        addition = self._add()
        self.progress(self._total, self._total)
        return {"remove": removal, "add": addition}

    def _remove(self) -> SwapSteps:
        spans = _spans(self.a)
        allowed = _largest(spans, partial(self.scorer.contributions, 0), self._report)
        words = [self.a[slice(*span)] for span in spans]

        def texts_of(removed: Sequence[int]) -> str:
            return without_words(self.a, [spans[index] for index in removed]) if removed else str(self.a)

        return _greedy(
            words,
            allowed,
            min(self.max_words, len(words) - 1),  # A must keep at least one word.
            texts_of,
            partial(self._test, self.scorer.of_documents),
            lambda text: self.verify(text, self.query),
        )

    def _add(self) -> SwapSteps:
        lacking = _lacking(self.b, self.query)
        spans = [span for span, _ in lacking]
        allowed = _largest(spans, partial(self.scorer.contributions, 1), self._report)
        words = [word for _, word in lacking]
        return _greedy(
            words,
            allowed,
            min(self.max_words, len(words)),
            lambda added: " ".join([self.query, *(words[index] for index in added)]),
            partial(self._test, self.scorer.of_queries),
            lambda query: self.verify(self.a, query),
        )

    def _test(self, score: ScoreTexts, tried: Sequence[str]) -> Array:
        """Return the scores of documents A and B for each tried text, [text, 2], and report progress."""
        done = self._done
        values = score(tried, lambda number: self.progress(min(done + number, self._total), self._total))
        self._done += len(tried)
        return values

    def _report(self) -> None:
        self.progress(self._done, self._total)


def _spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word of a text."""
    return [match.span() for match in _WORD.finditer(text)]


def _lacking(document: str, query: str) -> list[tuple[tuple[int, int], str]]:
    """Return each distinct word of a document that the query does not contain, with its span."""
    query_words = {match[0].casefold() for match in _WORD.finditer(query)}
    lacking = []
    for match in _WORD.finditer(document):
        if match[0].casefold() not in query_words:
            query_words.add(match[0].casefold())
            lacking.append((match.span(), match[0]))
    return lacking


def without_words(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return a text without the words at these spans, and without one of the spaces around each word."""
    for start, end in sorted(spans, reverse=True):
        before, after = text[:start], text[end:]
        if not before or before[-1].isspace():
            after = after[1:] if after[:1].isspace() else after
        text = before + after
    return text.strip()


def _largest(
    spans: Sequence[tuple[int, int]],
    contributions: Callable[[], WordContributions | None],
    report: Callable[[], None],
) -> list[int]:
    """Return the sorted indices of at most `MAX_CANDIDATES` words.

    These are the words with the largest contributions to the score, or the first words if the score is not a
    sum of contributions.

    Args:
        report: called before each step of the computation, in order to cancel it.
    """
    indices = list(range(len(spans)))
    if len(spans) <= MAX_CANDIDATES:
        return indices
    report()
    contribution_of = contributions()
    if contribution_of is not None:
        values = []
        for number, span in enumerate(spans):
            if number % MAX_CANDIDATES == 0:
                report()
            values.append(contribution_of(span))
        indices = [int(index) for index in np.argsort(-np.array(values), kind="stable")]
    return sorted(indices[:MAX_CANDIDATES])


def _greedy(
    words: Sequence[str],
    allowed: Sequence[int],
    limit: int,
    text_of: Callable[[Sequence[int]], str],
    score: Callable[[Sequence[str]], Array],
    verify: Callable[[str], Array],
) -> SwapSteps:
    """Choose words one at a time until B's verified score exceeds A's.

    Args:
        words: all words.
        allowed: indices of the words that may be chosen.
        limit: maximum number of words.
        text_of: returns the text for the indices of chosen words.
        score: returns the scores of A and B for texts, [text, 2].
        verify: returns the scores of A and B for one text, [2], as `Search` computes them.
    """
    indices: list[int] = []
    text = text_of(indices)
    steps, verified = [score([text])[0]], verify(text)
    while len(indices) < limit and verified[0] >= verified[1]:
        candidates = [index for index in allowed if index not in indices]
        if not candidates:
            break
        values = score([text_of([*indices, index]) for index in candidates])
        margins = values[:, 0] - values[:, 1]
        if np.isnan(margins).all():  # without any of these words, a text has no score
            break
        best = int(np.nanargmin(margins))
        indices.append(candidates[best])
        text = text_of(indices)
        steps.append(values[best])
        verified = verify(text)
    texts = tuple(text_of(indices[:count]) for count in range(len(indices) + 1))
    return SwapSteps(
        tuple(words[index] for index in indices),
        tuple(indices),
        texts,
        read_only(np.array(steps)),
        (float(verified[0]), float(verified[1])),
        len(allowed),
        len(words),
    )


@dataclass(frozen=True, eq=False)
class SwapSteps:
    """Words that are removed from A or added to the query, one after the other.

    Attributes:
        words: the chosen words, in the order of the steps.
        positions: index of each chosen word among all words, from 0.
        texts: the document A or the query before the first step and after each step.
        scores: scores of A and B, float64 of shape [step + 1, 2].
        verified: scores of A and B after the last step, from `Search` with the last text.
        candidates: number of words that were tested in the first step.
        count: number of all words that could be removed or added.
    """

    words: tuple[str, ...]
    positions: tuple[int, ...]
    texts: tuple[str, ...]
    scores: Array
    verified: tuple[float, float]
    candidates: int
    count: int

    @property
    def is_swapped(self) -> bool:
        """Whether B has a higher score than A after the last step."""
        return self.verified[1] > self.verified[0]

    @property
    def is_smallest(self) -> bool:
        """Whether it is certain that no smaller set of words swaps the documents.

        It is certain for one word, and for two words if every word was tested alone.
        """
        return self.is_swapped and (len(self.words) == 1 or (len(self.words) == 2 and self.is_complete))

    @property
    def is_complete(self) -> bool:
        """Whether every word was tested in the first step."""
        return self.candidates == self.count

    @property
    def margins(self) -> Array:
        """A's score minus B's score, of shape [step + 1]."""
        margins: Array = self.scores[:, 0] - self.scores[:, 1]
        return margins

    def frame(self) -> pd.DataFrame:
        """Return one row for each step, from 0; see `RankSwapResult.frame`, without the column `change`."""
        return pd.DataFrame(
            {
                "step": np.arange(len(self.texts)),
                "word": frames.plain_strings(["", *self.words]),
                "score_a": self.scores[:, 0],
                "score_b": self.scores[:, 1],
                "margin": self.margins,
                "text": frames.plain_strings(self.texts),
            }
        )

    @property
    def about(self) -> dict[str, Any]:
        """The chosen words, the last text, its scores, and whether B overtook A, as JSON values."""
        return {
            "swapped": self.is_swapped,
            "words": list(self.words),
            "text": self.texts[-1],
            "scores": list(self.verified),
            "smallest": self.is_smallest,
            "tested_words": self.candidates,
            "all_words": self.count,
        }


@dataclass(frozen=True, eq=False, repr=False)
class RankSwapResult(Result):
    """The words whose removal or addition lets document B overtake document A.

    Attributes:
        documents: all documents of the search.
        pair: indices of A and B, from 0.
        changes: under "remove", the steps of removing words from A; under "add", the steps of adding words to
            the query.
        recipe: the pooling configuration of the query; None for scorers other than the bi-encoder.
    """

    question: RankSwap
    documents: DocumentList
    pair: tuple[int, int]
    changes: Mapping[str, SwapSteps]
    recipe: PoolingConfig | None

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, the form in which view files store them."""
        return self.documents.lines

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the IDs of A and B, and `SwapSteps.about` for removing and for adding words."""
        pooling = {} if self.recipe is None else {"recipe": self.recipe.about}
        names = {name: self.documents[index].id for name, index in zip("ab", self.pair, strict=True)}
        return {**pooling, **names, **{name: steps.about for name, steps in self.changes.items()}}

    def frame(self) -> pd.DataFrame:
        """Return one row for each step of removing words from A, and then of adding words to the query.

        Columns: change (remove or add), step (0 for the original text), word, score_a, score_b, margin
        (score_a − score_b), text (the document A or the query after the step).
        """
        tables = []
        for name, steps in self.changes.items():
            table = steps.frame()
            table.insert(0, "change", frames.plain_strings([name] * len(table)))
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    @property
    def nbytes(self) -> int:
        """Size of the documents and the texts of the steps in bytes."""
        texts = [text for steps in self.changes.values() for text in steps.texts]
        return sum(map(len, self.documents)) + sum(map(len, texts))
