"""Test that the playground computes the same measures, similarities and views as the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.find_heads import FindHeads
from bert_probe.analyses.attention.heads import Heads, first_look
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.retrieval.calibration import percentile_of
from bert_probe.analyses.vectors.similarity import Similarity
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.text.words import word_lens
from bert_probe.views import head_view, matrix, model_view
from bert_probe.views.contributions import sentence_similarity_heatmap
from bert_probe.views.head_view import HeadReason, HeadViewData
from bert_probe.views.heatmaps import similarity_heatmap
from bert_probe.views.measures import MEASURES
from bert_probe.views.payload import unpack
from bert_probe.views.selection import Selection
from tests.helpers.javascript import run_module
from website.playground import palette

SHOW = """
import { readFileSync, writeFileSync } from "node:fs";
import { Attention } from "./head_view/attention.js";
import { switchUnits, unpackHeads } from "./head_view/model.js";
import { chooseWords, rankBothDirections, rankHeads } from "./site/find_heads.js";
import { findFirstHead, measureHeads } from "./site/heads.js";
import * as payloads from "./site/payloads.js";
import { compareSentences, compareTokens, getPercentile } from "./site/similarity.js";
import { Trace } from "./site/trace.js";

const [folder] = process.argv.slice(1);
const requests = JSON.parse(readFileSync(`${folder}/requests.json`));
const decode = (text) => Uint8Array.from(Buffer.from(text, "base64"));
const decodeBoth = ({ light, dark }) => ({ light: decode(light), dark: decode(dark) });
const palette = Object.fromEntries(
  Object.entries(requests.palette).map(([kind, tables]) => [kind, decodeBoth(tables)]),
);
const traces = requests.texts.map(({ text, pair, tokens }, i) => {
  const read = (name) => new Float32Array(new Uint8Array(readFileSync(`${folder}/${i}.${name}`)).buffer);
  const names = ["hidden", "queries", "keys", "values"];
  const arrays = Object.fromEntries(names.map((name) => [name, read(name)]));
  return new Trace(text, tokens, arrays, requests.shape, pair);
});
const write = (name, bytes) => writeFileSync(`${folder}/${name}`, bytes);
const views = traces.map((trace, i) => {
  const measures = measureHeads(trace);
  const reason = findFirstHead(trace);
  const selection = payloads.createSelection(trace, 3, [4]);
  const heads = payloads.packHeads(trace, 3, { model: requests.model, measures, selection, reason });
  write(`${i}.heads`, heads);
  write(`${i}.thumbnails`, payloads.packThumbnails(trace, requests.model, palette));
  const rows = [false, true].map((words) => {
    const model = switchUnits(unpackHeads(heads), words);
    const attention = new Attention(model);
    const queries = [...model.units.keys()];
    return [4, "mean"].map((head) => queries.map((query) => [...attention.getRow(head, query)]));
  });
  const initialWords = chooseWords(trace);
  const ranked = [[0, 3], [3, 1], [2, 2]].map(([query, key]) => rankHeads(trace, query, key));
  return { measures, reason, rows, initialWords, ranked, both: rankBothDirections(trace, [3, 1]) };
});
const pair = traces.slice(0, 2);
write("cosines", payloads.packCosines(pair, compareTokens(...pair, 4), 4, palette));
const { cosine, contributions } = compareSentences(...pair);
write("contributions", payloads.packContributions(pair, contributions, palette));
const sorted = new Float32Array(requests.sorted);
const percentiles = requests.scores.map((score) => getPercentile(score, sorted));
console.log(JSON.stringify({ traces: views, cosine, contributions: [...contributions], percentiles }));
"""

TEXTS = (
    "Electroencephalographers saw the naïve cat, and the cat left.",
    "Mehdi Wolpertinger moved to Tallahassee unexpectedly!",
    "The river and the boat, the bank and the tree: " * 12,
)
PAIR = ("Obama speaks to the media in Illinois.", "The President greets the press in Chicago.")
SORTED = [-0.25, 0.0, 0.0, 0.5, 0.75]
SCORES = [-1.0, 0.0, 0.25, 0.5, 0.75, 0.875]


@pytest.fixture(scope="module")
def traces(minilm: Checkpoint) -> list[Trace]:
    return [*map(minilm.trace, TEXTS), minilm.trace(*PAIR)]


@pytest.fixture(scope="module")
def folder(traces: list[Trace], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    for number, trace in enumerate(traces):
        parts = {"hidden": trace.hidden_states, "queries": trace.q, "keys": trace.k, "values": trace.v}
        for name, array in parts.items():
            (folder / f"{number}.{name}").write_bytes(np.ascontiguousarray(array, "<f4").tobytes())
    requests = {
        "model": traces[0].provenance["model"],
        "palette": palette(),
        "shape": {"layers": 6, "heads": 12, "size": 32},
        "texts": [
            {"text": trace.encoding.text, "pair": trace.encoding.pair, "tokens": described(trace)}
            for trace in traces
        ],
        "sorted": SORTED,
        "scores": SCORES,
    }
    (folder / "requests.json").write_text(json.dumps(requests), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = run_module(SHOW, str(folder))
    return result


def described(trace: Trace) -> list[dict[str, Any]]:
    return [
        {
            "text": str(token),
            "id": token.id,
            "word": token.word,
            "segment": token.segment,
            "start": token.start or 0,
            "end": token.end or 0,
            "special": token.special,
        }
        for token in trace.tokens
    ]


def test_head_measures_and_first_head(results: dict[str, Any], traces: list[Trace]) -> None:
    for result, trace in zip(results["traces"], traces, strict=True):
        expected = Heads().of(trace).values
        assert result["measures"].keys() == expected.keys() == MEASURES.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(result["measures"][name], values, rtol=2e-5, atol=2e-6, err_msg=name)
        look = first_look(trace)
        assert result["reason"] == {"layer": look.layer + 1, "head": look.head, "text": look.reason}


def test_heads_between_two_words(results: dict[str, Any], traces: list[Trace]) -> None:
    for result, trace in zip(results["traces"], traces, strict=True):
        units = word_lens(trace).units
        for (query, key), ranked in zip(((0, 3), (3, 1), (2, 2)), result["ranked"], strict=True):
            exact = FindHeads([(units[query].position, units[key].position)]).of(trace)
            assert len(ranked) == exact.weights.size
            for score in ranked:
                assert (score["query"], score["key"]) == (query, key)
                place = (score["layer"], score["head"])
                assert score["weight"] == pytest.approx(exact.weights[place], abs=1e-6)
                assert score["rank"] == exact.ranks[place]
            weights = [score["weight"] for score in ranked]
            assert weights == sorted(weights, reverse=True)
        both = {(score["layer"], score["head"], score["query"]): score["weight"] for score in result["both"]}
        assert len(both) == 2 * 72
        assert [both[key] for key in both] == sorted(both.values(), reverse=True)


def test_initial_words_are_the_last_and_third_last(results: dict[str, Any], traces: list[Trace]) -> None:
    for result, trace in zip(results["traces"], traces, strict=True):
        words = [index for index, unit in enumerate(word_lens(trace).units) if unit.isalnum()]
        assert result["initialWords"] == [words[-1], words[-3]]


def test_head_view_payload(results: dict[str, Any], traces: list[Trace], folder: Path) -> None:
    for number, trace in enumerate(traces):
        look = first_look(trace)
        assert isinstance(look.head, int)
        selection = Selection(3, (4,))
        data = HeadViewData.of(trace, selection, Heads().of(trace).labels)
        reason = HeadReason(look.layer + 1, look.head, look.reason)
        state = head_view.initial_state(trace, data.at(selection), key="playground-heads", reason=reason)
        expected = head_view.payload(data, 2, key="playground-heads", state=state, both=True)
        description, arrays = unpack(expected)
        own_description, own_arrays = unpack((folder / f"{number}.heads").read_bytes())
        # The playground computes another digest of the tokens than the library, so `of` is not compared.
        own_description["selection"]["of"] = description["selection"]["of"]
        assert own_description == json.loads(json.dumps(description))
        for name in arrays.keys() - {"weights", "queries", "keys"}:
            np.testing.assert_array_equal(own_arrays[name], arrays[name], err_msg=name)
        for words, rows in zip((False, True), results["traces"][number]["rows"], strict=True):
            for head, weights in zip((4, "mean"), rows, strict=True):
                exact = Attention(2, head, words=words).of(trace).weights  # type: ignore[arg-type]
                np.testing.assert_allclose(weights, exact, rtol=0, atol=1e-6)


def test_model_view_payload(results: dict[str, Any], traces: list[Trace], folder: Path) -> None:
    assert len(results["traces"]) == len(traces)
    for number, trace in enumerate(traces):
        description, arrays = unpack(
            model_view.trace_payload(trace, Heads().of(trace), key="playground-model")
        )
        own_description, own_arrays = unpack((folder / f"{number}.thumbnails").read_bytes())
        assert own_description == json.loads(json.dumps(description))
        for name in ("light", "dark", "labeled"):
            np.testing.assert_array_equal(own_arrays[name], arrays[name], err_msg=name)
        np.testing.assert_allclose(own_arrays["numbers"], arrays["numbers"], rtol=2e-5, atol=2e-6)
        # A weight that lies between two colors may be rounded to either of them.
        difference = np.abs(own_arrays["entries"].astype(int) - arrays["entries"])
        assert own_arrays["entries"].shape == arrays["entries"].shape
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-3


def test_similarity_of_tokens_and_sentences(
    results: dict[str, Any], traces: list[Trace], folder: Path
) -> None:
    a, b = traces[:2]
    cosines = similarity_heatmap(Similarity(4).of(a, b))
    result = SentenceSimilarity("contributions").of(a, b)
    assert results["cosine"] == pytest.approx(result.score, abs=1e-7)
    np.testing.assert_allclose(results["contributions"], result.contributions.ravel(), rtol=0, atol=1e-9)
    assert sum(results["contributions"]) == pytest.approx(results["cosine"], abs=1e-12)
    for name, file, heatmap in (
        ("similarity", "cosines", cosines),
        ("contributions", "contributions", sentence_similarity_heatmap(result)),
    ):
        expected = matrix.payload(
            heatmap.values, heatmap.rows, heatmap.columns, key=f"playground-{name}", **heatmap.drawing
        )
        description, arrays = unpack(expected)
        own_description, own_arrays = unpack((folder / file).read_bytes())
        for field in ("min", "max"):
            assert own_description.pop(field) == pytest.approx(description.pop(field), abs=1e-6)
        # The playground computes another digest of the labels than the library.
        assert own_description.pop("labels") != description.pop("labels")
        assert own_description == description
        np.testing.assert_allclose(own_arrays["values"], arrays["values"], rtol=0, atol=1e-6)


def test_percentile_counts_lower_scores(results: dict[str, Any]) -> None:
    assert results["percentiles"] == [0, 20, 60, 60, 80, 100]
    assert results["percentiles"] == [percentile_of(score, np.array(SORTED)) for score in SCORES]


def test_words_are_those_of_library(traces: list[Trace], folder: Path) -> None:
    for number, trace in enumerate(traces):
        description, _ = unpack((folder / f"{number}.heads").read_bytes())
        assert description["other"]["texts"] == [str(unit) for unit in word_lens(trace).units]
