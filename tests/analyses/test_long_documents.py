"""Test long documents: truncated text, the effect of position, and chunks, compared with the raw model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import ChunkedSearch, Document, PositionEffect, Search, TruncationAudit
from bert_probe.analyses.retrieval import chunked_search, position_effect
from bert_probe.analyses.retrieval.chunked_search import (
    METHODS,
    ChunkedSearchResult,
    chunk_spans,
    sentence_spans,
)
from bert_probe.analyses.vectors import sentences as sentence_vectors
from bert_probe.analyses.vectors.pooling import PoolingConfig, pool_unpadded
from bert_probe.errors import EmptyTextError, SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import sentence_models
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import prove_unless

LONG = (
    "The boat crosses the river at night. It carries grain. Nobody can read a map at night! The sea is wide."
)
SHORT = "Rivers flow into the sea. Barges carry grain."
DOCUMENTS = (LONG, Document(SHORT, "barges", "Barges"))
QUERY = "Who reads a map?"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("She said “Go.” He went.", ["She said “Go.”", "He went."]),
        ("J. R. Smith, e.g. here. End.", ["J. R. Smith, e.g. here.", "End."]),
        ("a wing was tested . results agree .", ["a wing was tested .", "results agree ."]),
        ("first line\nsecond line\r\n\r\nthird", ["first line", "second line", "third"]),
        ("川は広い。船が渡る。", ["川は広い。", "船が渡る。"]),
        ("3.14 is pi. Version 2.0 is out.", ["3.14 is pi.", "Version 2.0 is out."]),
        ("  ?! ", ["?!"]),
        ("Yes. … … No.", ["Yes. … …", "No."]),
        ("👎👎\nThe map. ★☆\n☆", ["👎👎\nThe map. ★☆\n☆"]),
        (" ★☆. … The map. No.", ["★☆. … The map.", "No."]),
        ("👎.\n★", ["👎.\n★"]),
        (" \n", []),
        ("", []),
    ],
)
def test_sentence_spans(text: str, sentences: list[str]) -> None:
    assert [text[start:end] for start, end in sentence_spans(text)] == sentences


@pytest.mark.parametrize("before", ["", "a"])
@pytest.mark.parametrize("run", [" ", "!", ".", '"', "\t", "。", "a. ", "! ", "\n "])
def test_sentences_of_long_runs_are_found_in_linear_time(run: str, before: str) -> None:
    text = f"{before}{run * (250_000 // len(run))}b"
    started = time.process_time()
    assert sentence_spans(text)[0][0] == len(text) - len(text.lstrip())
    assert time.process_time() - started < 5  # An algorithm with quadratic time would take minutes.


@pytest.mark.parametrize("size", [1, 2, 5, 21, 100])
def test_chunks_cover_every_token_once_within_the_size(minilm: Checkpoint, size: int) -> None:
    text = f"{LONG} Incomprehensibilities, antidisestablishmentarianism."
    tokens = [token for token in minilm.encode(text).tokens if token.start is not None]
    spans = chunk_spans(text, tokens, size)
    counts = [sum(start <= (token.start or 0) < end for token in tokens) for start, end in spans]
    assert sum(counts) == len(tokens)
    assert max(counts) <= size
    assert [*spans] == sorted(spans)
    if size > 20:  # with this size, every sentence fits into a chunk
        assert {start for start, _ in spans} <= {start for start, _ in sentence_spans(text)}


def test_audit_counts_what_the_tokenizer_counts(minilm: Checkpoint) -> None:
    result = TruncationAudit(limit=12, show="lost").of(minilm, DOCUMENTS)
    raw = [len(minilm.tokenizer(str(text))["input_ids"]) for text in (LONG, f"Barges {SHORT}")]
    assert result.lengths.tolist() == raw
    assert result.dropped.tolist() == [count - 12 for count in raw]
    # The model reads 10 tokens of the first document, whose first sentence has 8 tokens.
    (row, _) = result.table().to_dict("records")
    assert row["document"] == "1"
    assert row["lost"] == LONG[LONG.index("grain") :]
    assert (row["sentences"], row["sentences_lost"]) == (4, 3)
    assert row["characters_read"] == len("The boat crosses the river at night. It carries ") - 1


def test_audit_of_other_limits_by_hand(minilm: Checkpoint) -> None:
    result = TruncationAudit(limit=10, show="limits").of(minilm, DOCUMENTS)
    first, second = sorted(map(int, result.lengths), reverse=True)
    table = result.table().set_index("limit")
    assert table["tokens_dropped"].to_dict() == {10: first + second - 20, first: 0}
    assert table["percent_of_documents"].to_dict() == {10: 100, first: 0}
    assert table["percent_of_tokens"][10] == pytest.approx(100 * (first + second - 20) / (first + second))
    complete = TruncationAudit().of(minilm, DOCUMENTS)
    assert complete.limit == 256
    assert complete.truncated == ()
    assert "read completely" in complete.finding


def test_audit_agrees_with_what_a_search_drops(minilm: Checkpoint) -> None:
    texts = ["word " * 300, "short"]
    assert TruncationAudit().of(minilm, texts).dropped.tolist() == [*Search("word").of(minilm, texts).dropped]


def test_limit_without_room_for_a_document_is_refused(minilm: Checkpoint) -> None:
    with pytest.raises((SelectionError, TextError), match=r"limit is 2|no tokens"):
        TruncationAudit(limit=2).of(minilm, DOCUMENTS)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("query", [None, QUERY])
@pytest.mark.parametrize("passage", [None, "Eggs are sold here."])
def test_changes_equal_searches_in_changed_documents(
    double_minilm: Checkpoint, query: str | None, passage: str | None
) -> None:
    result = PositionEffect(query, passage, positions=4, show="documents").of(double_minilm, DOCUMENTS)
    sentences = [LONG[start:end] for start, end in sentence_spans(LONG)]
    if passage is None:
        changed = [" ".join([*sentences[:i], *sentences[i + 1 :]]) for i in range(4)]
    else:
        changed = [" ".join([*sentences[:i], passage, *sentences[i:]]) for i in range(5)]
    variants = [variant for variant in result.variants if variant.document == 0]
    assert [variant.text for variant in variants] == changed
    search = Search(LONG if query is None else query, document_prompt="none")
    scores = search.of(double_minilm, [LONG, *changed]).scores["bi-encoder"]
    assert_exact(result.scores[: len(changed)], scores[1:])
    assert_exact(result.changes[: len(changed)], scores[1:] - scores[0])
    assert [*result.table()["document"].unique()] == ["1", "barges"]


def test_curve_by_hand(minilm: Checkpoint) -> None:
    result = PositionEffect(positions=2).of(minilm, DOCUMENTS)
    positions = np.array([variant.position for variant in result.variants])
    for number, row in result.table().iterrows():
        inside = (positions >= row["position_from"]) & (positions < row["position_to"])
        assert row["texts"] == inside.sum() == 2
        assert row["change"] == pytest.approx(result.changes[inside].mean())
        # A bootstrap resample of two documents contains one document twice or each once.
        assert row["low"] == pytest.approx(result.changes[inside].min())
        assert row["high"] == pytest.approx(result.changes[inside].max()), number
    assert result.metadata["documents_left_out"] == 0


@pytest.mark.parametrize(
    ("first", "last", "ratio"),
    [
        (-0.2, -0.1, "2.00"),
        (0.1, 0.2, "0.50"),
        (-0.2, 0.1, ""),
        (0.2, -0.1, ""),
        (0.2, 0.0, ""),
        (0.0, 0.2, ""),
    ],
)
def test_ratio_of_changes_is_given_only_if_they_have_the_same_sign(
    first: float, last: float, ratio: str, minilm: Checkpoint
) -> None:
    result = PositionEffect(positions=2).of(minilm, DOCUMENTS)
    is_start = np.array([variant.position < 0.5 for variant in result.variants])
    finding = replace(result, changes=np.where(is_start, first, last)).finding
    assert f"by {first:+.4f} on average, at the end by {last:+.4f}" in finding
    assert (f"which is {ratio} times" in finding) == bool(ratio)
    assert ("times the change" in finding) == bool(ratio)


def test_finding_is_about_the_start_and_the_end_of_every_document(minilm: Checkpoint) -> None:
    """The parts of short documents are in the middle bins of the curve."""
    result = PositionEffect().of(minilm, [LONG, "A boat sinks. It rains."])
    by_document = {
        index: [
            change
            for variant, change in zip(result.variants, result.changes, strict=True)
            if variant.document == index
        ]
        for index in (0, 1)
    }
    first, last = (np.mean([by_document[index][end] for index in (0, 1)]) for end in (0, -1))
    assert f"by {first:+.4f} on average, at the end by {last:+.4f}" in result.finding
    assert "(2 documents)" in result.finding
    assert result.curve["documents"].iloc[0] < 2


def test_documents_that_cannot_be_changed_are_left_out(minilm: Checkpoint) -> None:
    too_long = f"{'word ' * 300}. {'word ' * 300}."
    result = PositionEffect().of(minilm, [LONG, "A single sentence.", too_long])
    assert result.metadata["documents_left_out"] == 2
    with pytest.raises(UnavailableError, match="at least two sentences"):
        PositionEffect().of(minilm, ["A single sentence.", too_long])


def test_long_passages_are_tokenized_once_and_can_be_cancelled(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, events = position_effect._count_tokens, []

    def count_tokens(checkpoint: Checkpoint, recipe: PoolingConfig, text: str) -> int:
        events.append(len(text))
        return counted(checkpoint, recipe, text)

    monkeypatch.setattr(position_effect, "_count_tokens", count_tokens)
    monkeypatch.setattr(sentence_vectors, "_PROGRESS_CHARACTERS", 1)
    too_long = "A cat sat on a mat. " * 100
    with pytest.raises(UnavailableError, match="with the passage"):
        PositionEffect(passage=too_long, positions=20).of(minilm, DOCUMENTS)
    assert len(events) == 2 * len([text for text in DOCUMENTS if len(sentence_spans(text)) > 1])
    # The passage has 1,000 characters, but is a single [UNK] token, so the model can read it.
    # Progress is reported after each text.
    events.clear()
    PositionEffect(passage="x" * 1_000, positions=4).of(
        minilm, [LONG], progress=lambda done, _: events.append(-done)
    )
    assert not any(first > 0 and second > 0 for first, second in pairwise(events))
    assert events.count(0) >= 2 * 6
    monkeypatch.setattr(position_effect, "MAX_CHARACTERS", 3_000)
    with pytest.raises(UnavailableError, match=r"more than 3,000 characters\. Use fewer"):
        PositionEffect(passage="x" * 1_000, positions=4).of(minilm, [LONG])


def test_chunks_equal_a_search_in_chunks(double_minilm: Checkpoint) -> None:
    result = ChunkedSearch(QUERY, size=9).of(double_minilm, DOCUMENTS)
    texts = [str(document) for document in result.documents]
    chunks = [text[slice(*span)] for text, spans in zip(texts, result.spans, strict=True) for span in spans]
    search = Search(QUERY).of(double_minilm, chunks).scores["bi-encoder"]
    assert_exact(result.chunks, search)
    assert_exact(result.whole, Search(QUERY).of(double_minilm, texts).scores["bi-encoder"])
    count = len(result.spans[0])
    best = [search[:count].max(), search[count:].max()]
    assert_exact(result.scores["chunk"], np.array(best))
    assert_exact(result.scores["chunk_mean"], np.array([search[:count].mean(), search[count:].mean()]))
    row = result.table().iloc[0]
    assert row["text"] == chunks[int(np.argmax(search))]
    assert row["chunk_score"] == max(best)


def chunk_texts(result: ChunkedSearchResult) -> list[str]:
    """Return the text of each chunk."""
    pairs = zip(result.documents, result.spans, strict=True)
    return [str(document)[slice(*span)] for document, spans in pairs for span in spans]


def token_counts(checkpoint: Checkpoint, texts: list[str]) -> list[int]:
    return [len(checkpoint.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "gap", prove_unless({" " * 300, " " * 3}, [" " * 300, "\t" * 200, " \n" * 150, " " * 3])
)
@pytest.mark.parametrize("family", ["roberta", "bert", "xlm-roberta"])
def test_white_space_is_no_chunk(family_folder: Callable[[str], Path], family: str, gap: str) -> None:
    """Byte-level tokenizers have tokens of white space, between sentences and within a sentence."""
    checkpoint = bert_probe.load(family_folder(family), dtype="float64")
    document = f"The river is wide.{gap}A small boat{gap}crosses it."
    result = ChunkedSearch("boat", size=5).of(checkpoint, [document, "A map."], truncate=True)
    chunks = chunk_texts(result)
    assert all(chunk.strip() == chunk != "" for chunk in chunks)
    assert "".join(chunks[:-1]).replace(" ", "") == "Theriveriswide.Asmallboatcrossesit."
    assert_exact(result.chunks, Search("boat").of(checkpoint, chunks).scores["bi-encoder"])


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("size", prove_unless({1, 16}, [1, 5, 16, 64]))
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("roberta", "我们在河边看到一条小船" * 8),
        ("roberta", "👩👧👦½ﷺ" * 20),
        ("xlm-roberta", "boats½½½" * 9),
    ],
    ids=["Chinese", "emoji", "fractions"],
)
def test_a_character_is_in_one_chunk(
    family_folder: Callable[[str], Path], family: str, text: str, size: int
) -> None:
    """A character may have several tokens, each of which has the span of the character."""
    checkpoint = bert_probe.load(family_folder(family))
    result = ChunkedSearch("boat", size=size).of(checkpoint, [text], truncate=True)
    chunks = chunk_texts(result)
    assert "".join(chunks) == text
    # The first word of XLM-R can have an additional token, which has the span of the first character.
    limit = max(size, 2) if family == "xlm-roberta" else size
    counts = token_counts(checkpoint, [chunk for chunk in chunks if len(chunk) > 1])
    assert max(counts, default=0) <= limit


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("size", prove_unless({4}, [1, 4, 30]))
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_every_character_is_in_one_chunk(
    family_folder: Callable[[str], Path], family: str, size: int
) -> None:
    """Symbols before the first word, and characters that the tokenizer of BERT removes, are in a chunk."""
    checkpoint = bert_probe.load(family_folder(family))
    documents = ["★☆☆. ??!\nThe map\a of the river, the boat\a and the bridge. … It ends 👎", "$$ ... +"]
    result = ChunkedSearch("boat", size=size).of(checkpoint, documents, truncate=True)
    chunks = iter(chunk_texts(result))
    for document, spans in zip(documents, result.spans, strict=True):
        text = "".join(next(chunks) for _ in spans)
        assert "".join(text.split()) == "".join(document.split())


def test_symbols_before_the_first_word_are_part_of_the_document(double_minilm: Checkpoint) -> None:
    document = "★☆☆. ??!\nThe hotel was dirty. It rained."
    result = ChunkedSearch("★ hotel").of(double_minilm, [document])
    assert result.spans == (((0, len(document)),),)
    assert_exact(result.chunks, result.whole)
    assert result.late is not None
    with torch.no_grad():
        encoded = double_minilm.tokenizer("★ hotel", return_tensors="pt")
        query = double_minilm.model(**encoded).last_hidden_state[0].mean(dim=0).numpy()
    vector = late_chunk(double_minilm, document, (0, len(document)))
    assert_exact(result.late, [vector @ query / np.linalg.norm(vector) / np.linalg.norm(query)])

    inserted = PositionEffect(passage="Eggs are sold here.").of(double_minilm, [document]).variants
    assert (inserted[0].position, inserted[0].text) == (0, f"Eggs are sold here. {document}")
    removed = PositionEffect().of(double_minilm, [document]).variants
    assert [variant.text for variant in removed] == ["It rained.", "★☆☆. ??!\nThe hotel was dirty."]


@pytest.mark.prove
@pytest.mark.parametrize("family", prove_unless({"roberta"}, ["roberta", "bert"]))
def test_chunks_that_are_read_alone_fit_into_the_limit(
    family_folder: Callable[[str], Path], family: str
) -> None:
    """The first word of a chunk has other tokens than after a space, or than the end of a longer word."""
    checkpoint = bert_probe.load(family_folder(family))
    words = ["before", "almost", "ground", "river", "bridge", "nobody", "engineers", "repaired", "crosses"]
    texts = [" ".join(words[i * j % 9] for i in range(300)) for j in (1, 5, 7)] + ["repairedbridge" * 50]
    limit = checkpoint.encoder.max_tokens - 2  # type: ignore[operator]
    for size in (limit, limit // 2, 20, 3):
        result = ChunkedSearch("boat", size=size).of(checkpoint, texts, truncate=True)
        assert max(token_counts(checkpoint, chunk_texts(result))) <= size


def test_document_without_a_chunk_is_refused(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_search, "chunk_spans", lambda *_: [])
    with pytest.raises(EmptyTextError, match=r"Document 1: No chunk has tokens\. Use larger chunks"):
        ChunkedSearch("word").of(minilm, ["a boat"])


def late_chunk(checkpoint: Checkpoint, text: str, span: tuple[int, int], prompt: str = "") -> np.ndarray:
    """Return the mean of the last hidden states over a chunk's tokens, computed with raw transformers."""
    encoded = checkpoint.tokenizer(prompt + text, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0] - len(prompt)
    with torch.no_grad():
        states = checkpoint.model(**encoded).last_hidden_state[0]
    inside = (offsets[:, 0] >= span[0]) & (offsets[:, 1] <= span[1]) & (offsets[:, 1] > offsets[:, 0])
    return states[inside].mean(dim=0).double().numpy()


def test_late_chunking_pools_the_tokens_of_a_chunk(double_minilm: Checkpoint) -> None:
    result = ChunkedSearch(QUERY, size=9).of(double_minilm, [LONG])
    assert result.late is not None
    query = late_chunk(double_minilm, QUERY, (0, len(QUERY)))
    encoded = double_minilm.tokenizer(QUERY, return_tensors="pt")
    with torch.no_grad():
        query = double_minilm.model(**encoded).last_hidden_state[0].mean(dim=0).numpy()
    for value, span in zip(result.late, result.spans[0], strict=True):
        vector = late_chunk(double_minilm, LONG, span)
        assert value == pytest.approx(
            query @ vector / np.linalg.norm(query) / np.linalg.norm(vector), abs=1e-10
        )


def test_late_chunking_reads_the_prompt_once(family_folder: Callable[[str], Path], tmp_path: Path) -> None:
    layout = next(key for key in sentence_models.LAYOUTS if key.startswith("no prompt pooled"))
    sentence_models.save(layout, family_folder(sentence_models.LAYOUTS[layout].family), tmp_path / "model")
    checkpoint = bert_probe.load(tmp_path / "model", dtype="float64")
    prompt = dict(checkpoint.sentence_model.prompts)["passage"]  # type: ignore[union-attr]
    text = "a boat. the map of the night."
    result = ChunkedSearch("a map", size=6, document_prompt="passage").of(checkpoint, [text])
    assert result.late is not None
    assert len(result.late) > 1
    vector = (
        bert_probe.Sentences("model", show="vectors", prompt="query").of(checkpoint, ["a map"]).vectors[0]
    )
    for value, span in zip(result.late, result.spans[0], strict=True):
        late = late_chunk(checkpoint, text, span, prompt)
        cosine = vector @ late / np.linalg.norm(vector) / np.linalg.norm(late)
        assert value == pytest.approx(cosine, abs=1e-10)


@pytest.mark.prove
def test_chunks_beyond_the_limit_have_no_late_score(minilm: Checkpoint) -> None:
    result = ChunkedSearch("word", size=100).of(minilm, ["word " * 299 + "end.", "A word."])
    assert result.late is not None
    assert [len(spans) for spans in result.spans] == [4, 1]  # The chunks have 76, 75, 75 and 75 tokens.
    # 254 tokens are read: the first three chunks (76 + 75 + 75) and 28 tokens of the last one.
    assert np.isfinite(result.late).all()
    longer = ChunkedSearch("word", size=100).of(minilm, ["word " * 599 + "end.", "A word."])
    assert longer.late is not None
    assert np.isnan(longer.late).tolist() == [False, False, False, *[True] * 4, False]
    assert result.dropped[0] == 301 + 2 - 256
    assert np.isfinite(result.table()["late_score"]).all()


def test_late_chunking_without_a_mean_is_unavailable(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    sentence_models.save("cls", family_folder(sentence_models.LAYOUTS["cls"].family), tmp_path / "model")
    result = ChunkedSearch("a map", size=4, by="late").of(
        bert_probe.load(tmp_path / "model"), ["a boat. night."]
    )
    assert result.late is None
    assert "unavailable" in result.metadata["late_chunking"]
    assert "late_score" not in result.table()


@pytest.mark.filterwarnings("error")
def test_documents_without_a_score_come_last(minilm: Checkpoint) -> None:
    """The cosine with a vector of zeros is undefined, for example with a sparse encoder."""
    result = ChunkedSearch(QUERY, size=9).of(minilm, DOCUMENTS)
    count = len(result.spans[0])
    undefined = np.where(np.arange(len(result.chunks)) < count, np.nan, result.chunks)
    result = replace(result, chunks=undefined, late=undefined)
    assert result.best == {"chunk": (None, result.best["late"][1]), "late": (None, result.best["chunk"][1])}
    assert all(np.isnan(result.scores[name]).tolist() == [True, False] for name in METHODS if name != "whole")
    table = result.table()
    assert table["document"].tolist() == ["barges", "1"]
    assert table["best_chunk"].isna().tolist() == table["chunk_score"].isna().tolist() == [False, True]
    assert table["text"][1] == chunk_texts(result)[0]
    everything = replace(result, chunks=np.full_like(undefined, np.nan), late=None)
    assert everything.table()["document"].tolist() == ["1", "barges"]


def test_too_many_chunks_are_refused(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_search, "MAX_CHUNKS", 3)
    split: list[str] = []

    def record(text: str, *rest: Any) -> Any:
        split.append(text)
        return chunk_spans(text, *rest)

    monkeypatch.setattr(chunked_search, "chunk_spans", record)
    with pytest.raises(
        SelectionError, match=r"The first 1 of 3 documents have more than 3 chunks, which is the maximum"
    ):
        ChunkedSearch("word", size=9).of(minilm, [LONG, f"{LONG} ", SHORT])
    assert split[0] == LONG
    assert all(text in LONG for text in split)  # the other documents are not split


def test_late_chunking_pools_only_the_tokens_of_a_chunk(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pooling all chunks in one batch would copy the document's hidden states for each chunk."""
    pool, shapes = pool_unpadded, []

    def record(states: torch.Tensor, config: PoolingConfig) -> torch.Tensor:
        shapes.append(tuple(states.shape))
        return pool(states, config)

    monkeypatch.setattr(chunked_search, "pool_unpadded", record)
    result = ChunkedSearch("word", size=9).of(minilm, [LONG])
    assert [shape[0] for shape in shapes] == [1] * len(result.chunks)
    assert sum(shape[1] for shape in shapes) == len(minilm.encoder.encode(LONG)) - 2


def test_chunk_that_exceeds_the_limit_is_refused(minilm: Checkpoint) -> None:
    with pytest.raises(SelectionError, match="at most 254 tokens of a chunk"):
        ChunkedSearch("word", size=255).of(minilm, [LONG])
