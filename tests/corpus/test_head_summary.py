"""Test head statistics over all rows of a store: parity with loops over the raw model."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import bert_probe
from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.corpus import heads
from bert_probe.corpus.extract import statistics_columns
from bert_probe.corpus.heads import QUANTILES, SUMMARY, MeasureStatistics, head_statistics
from bert_probe.corpus.schema import BINS, bin_edges, bin_indices
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model import lengths
from tests.helpers import treebank
from tests.helpers.command_line import bert_probe as run
from tests.helpers.exactness import assert_rounded
from tests.helpers.gate import prove_unless
from tests.helpers.stores import EXTRA, loops

Stores = Callable[[str], bert_probe.Store]
ROWS = (1, 2, 3, 4, 5, 7)
"""Row numbers of the sentences; the sixth record was refused."""


@pytest.fixture(scope="module")
def raw(stores: Stores) -> dict[str, np.ndarray]:
    """Return two measures of every head by name, computed with loops, each of shape [row, layer, head]."""
    store = stores("tokens")
    texts = store.table("rows").to_table()["text"].to_pylist()
    sentences = [*treebank.SAILING, *treebank.SLEEPING, *treebank.read(EXTRA)]
    assert texts == [sentence.text for sentence in sentences]
    every = [loop.weights for loop in loops(store, sentences)]
    entropy = [
        -(weights * np.log2(np.where(weights > 0, weights, 1))).sum(axis=-1).mean(axis=-1)
        for weights in every
    ]
    previous = [np.trace(weights, offset=-1, axis1=2, axis2=3) / weights.shape[-1] for weights in every]
    return {"entropy_bits": np.stack(entropy), "previous": np.stack(previous)}


@pytest.mark.parametrize("measure", ["entropy_bits", "previous"])
def test_head_statistics_match_raw_model(measure: str, raw: dict[str, np.ndarray], stores: Stores) -> None:
    store, values = stores("tokens"), raw[measure]
    matches = bert_probe.HeadStatistics(measure).of(store)
    flat = values.reshape(len(values), -1)
    assert matches.count == len(ROWS) == len(values)
    assert_rounded(matches.means[0], flat.mean(axis=0), 2)
    assert_rounded(matches.minima[0], flat.min(axis=0), 2)
    assert_rounded(matches.maxima[0], flat.max(axis=0), 2)
    assert_rounded(matches.quantiles[0], np.quantile(flat, QUANTILES, axis=0).T, 2)
    low, high = stats.t.interval(0.95, len(values) - 1, flat.mean(axis=0), stats.sem(flat))
    # a larger tolerance, because the difference of squares amplifies rounding errors
    assert_rounded(matches.lows[0], low, 32)
    assert_rounded(matches.highs[0], high, 32)
    table = matches.table()
    assert table[["layer", "head"]].to_numpy().tolist() == [
        [layer + 1, head + 1] for layer in range(store.sizes.layers) for head in range(store.sizes.heads)
    ]


def test_confidence_interval_matches_manual_calculation() -> None:
    """The values 1, 2 and 3 have the mean 2 and the standard deviation 1.

    The half-width of the interval is t / √3, with t = 4.302653 for 2 degrees of freedom.
    """
    unit = np.ones((1, 1))
    matches = MeasureStatistics(3, 2 * unit, unit, unit, 3 * unit, np.array([[[1, 1, 1]]]))
    assert matches.interval_half_widths[0, 0] == pytest.approx(2.484138, abs=1e-6)
    assert np.isnan(replace(matches, count=1).interval_half_widths).all()
    with pytest.raises(ShapeError, match=r"shape of values must begin with \(1, 1\) \(layers, heads\)"):
        replace(matches, minima=np.ones((2, 1)))


def test_selected_heads_match_all_heads(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores("words")
    some = bert_probe.HeadStatistics(heads=((-1, 0), (0, 1), (0, 1))).of(store)
    last = store.sizes.layers
    assert some.question.heads == ((last - 1, 0), (0, 1))
    table = some.table()
    assert len(table) == 2 * len(MEASURES)
    assert table["measure"].tolist() == [measure for name in MEASURES for measure in [name] * 2]
    monkeypatch.setattr(heads, "MAX_VALUES", 1)  # limits each pass to one head
    every = bert_probe.HeadStatistics("self").of(store).table()
    columns = ["layer", "head", "mean", "quantile_50"]
    own = table[table["measure"] == "self"][columns].to_numpy().tolist()
    assert own == [every[columns].to_numpy().tolist()[index] for index in ((last - 1) * store.sizes.heads, 1)]
    assert not every.isna().any(axis=None)


def test_quantiles_and_extremes_are_ordered(stores: Stores) -> None:
    table = bert_probe.HeadStatistics().of(stores("tokens")).table()
    ordered = table[["min", *(f"quantile_{level}" for level in ("05", "25", "50", "75", "95")), "max"]]
    assert (np.diff(ordered.to_numpy(dtype=float)) >= 0).all()
    assert ((table["min"] <= table["mean"]) & (table["mean"] <= table["max"])).all()


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("measure", MEASURES)
def test_every_row_is_listed_in_its_bin(measure: str, stores: Stores) -> None:
    store = stores("tokens")
    histograms = bert_probe.HeadHistograms(measure).of(store)
    assert (histograms.statistics.bins.sum(axis=-1) == store.rows).all()
    table = histograms.table()
    own = table[(table["layer"] == 1) & (table["head"] == 2)]
    assert len(own) == BINS
    for row in own[own["rows"] > 0].itertuples():
        matches = bert_probe.HeadExamples((0, 1), measure, "lowest", 100, bin=row.bin).of(store)
        assert len(matches.values) == row.rows == matches.among
        assert (matches.values >= np.float32(row.low)).all()
        assert (matches.values < row.high).all() or row.bin == BINS


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30), st.sampled_from(MEASURES))
def test_value_lies_within_its_bin(given_values: list[float], measure: str) -> None:
    values, ends = np.array(given_values), bin_edges(measure, 512)
    bins = bin_indices(values, ends)
    assert (ends[bins] <= values).all()
    assert ((values < ends[bins + 1]) | (bins == BINS - 1)).all()
    profiles = np.repeat(values[:, None, None, None], len(MEASURES), axis=3).astype(np.float32)
    counted = statistics_columns(profiles, 512)["bins"].flatten().to_numpy().reshape(len(MEASURES), BINS)
    assert (counted.sum(axis=1) == len(values)).all()


def test_head_examples_match_loop(raw: dict[str, np.ndarray], stores: Stores) -> None:
    store, values = stores("tokens"), raw["previous"][:, 1, 2]
    far = np.abs(values - np.median(values))
    orders = {"typical": far, "extreme": -far, "lowest": values, "highest": -values}
    for which, order in orders.items():
        table = bert_probe.HeadExamples((1, 2), "previous", which, top=4).of(store).table()
        # With an even number of rows, two rows are equally close to the median, up to rounding.
        best = np.argsort(order.round(6), kind="stable")[:4].tolist()
        assert table["row"].tolist() == [ROWS[index] for index in best]
        assert_rounded(table["value"], values[best], 2)
        assert table["rank"].tolist() == [1, 2, 3, 4]
    first = table.iloc[0]
    rows = store.table("rows").to_table().to_pandas().set_index("row")
    assert (first["text"], first["line"]) == tuple(rows.loc[first["row"], ["text", "line"]])
    assert Path(first["file"]).name == "boats.conllu"
    assert "layer=2&head=3" in first["link"]


def test_summary_of_other_shards_is_ignored(stores: Stores, tmp_path: Path) -> None:
    store = stores("tokens")
    folder = tmp_path / "copy"
    shutil.copytree(store.folder, folder)
    summary = folder / SUMMARY
    before = head_statistics(bert_probe.open_corpus(folder))
    summary.write_bytes(b"PAR1 broken")
    for again in (head_statistics(bert_probe.open_corpus(folder)), _without(summary, folder)):
        for measure, statistics in before.items():
            assert all(
                np.array_equal(getattr(statistics, name), getattr(again[measure], name)) for name in _ARRAYS
            )
    # After a shard is removed, the summary, which includes all shards, is outdated.
    shutil.copy(store.folder / SUMMARY, summary)
    (folder / "shards" / "00003.json").unlink()
    fewer = head_statistics(bert_probe.open_corpus(folder))["self"]
    assert fewer.count == before["self"].count - 1
    assert (fewer.bins.sum(axis=-1) == fewer.count).all()
    assert pq.read_table(store.folder / SUMMARY).num_rows == before["self"].means.size * len(MEASURES)


_ARRAYS = ("count", "means", "deviations", "minima", "maxima", "bins")


def _without(summary: Path, folder: Path) -> dict[str, MeasureStatistics]:
    summary.unlink()
    return head_statistics(bert_probe.open_corpus(folder))


ASKED = (
    bert_probe.HeadStatistics(),
    bert_probe.HeadStatistics("self", ((0, 1), (-1, 0))),
    bert_probe.HeadHistograms("mean_distance"),
    bert_probe.HeadExamples((-1, 1), "previous", "extreme", 3),
    bert_probe.HeadExamples((0, 0), "entropy_bits", "typical", bin=9),
    bert_probe.AttentionSearch((1, 0), query_pos="NOUN"),
    bert_probe.AttentionSearch((-1, 0), key_pos="DET", top=2, min_weight=0.01),
    bert_probe.AttentionSearch((0, 0), relation="obj"),
    bert_probe.SqlQuery("SELECT row, text FROM rows WHERE text LIKE '%boat%' ORDER BY row"),
    bert_probe.SqlQuery("-- how many\nSELECT count(*), sum(tokens) FROM rows"),
)


@pytest.mark.gate(cases=1)
@pytest.mark.usefixtures("in_store_folder")
@pytest.mark.parametrize("question", prove_unless({ASKED[0], ASKED[3], ASKED[6]}, ASKED), ids=repr)
def test_python_and_shell_code_give_same_table(question: Any, stores: Stores, tmp_path: Path) -> None:
    result = question.of(stores("tokens"))
    table = result.table()
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    again = eval(last, names)
    pd.testing.assert_frame_equal(again, table)
    assert again.attrs["provenance"] == result.provenance
    program, *words = shlex.split(result.shell)
    assert program == "bert-probe"
    ended = run(*words[:2], "--out", str(tmp_path / "again.csv"), *words[2:])
    assert (ended.status, ended.out) == (0, b""), ended.err
    assert json.loads((tmp_path / "again.csv.meta.json").read_text()) == json.loads(
        json.dumps(result.provenance)
    )
    result.save(tmp_path / "first.csv")
    assert (tmp_path / "first.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()
    for ending in ("json", "parquet", "npz"):
        result.save(tmp_path / f"first.{ending}")
    assert pd.read_csv(io.BytesIO((tmp_path / "first.csv").read_bytes())).shape == table.shape


@pytest.mark.parametrize("question", ASKED, ids=repr)
def test_questions_survive_round_trips(question: Any, stores: Stores) -> None:
    sizes = stores("tokens").sizes
    assert type(question).from_json(json.loads(json.dumps(question.to_json())), sizes) == question
    assert type(question).from_address(question.address(), sizes) == question
    assert eval(repr(question), {type(question).__name__: type(question)}) == question


@pytest.mark.usefixtures("in_store_folder")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["heads", "tokens", "--head", "9.1"], "There is no layer 9"),
        (["heads", "tokens", "--head", "x"], "There is no layer x"),
        (["heads", "tokens", "--measure", "beauty"], "measure must be entropy_bits,"),
        (["heads", "tokens", "--top", "3"], "Add --which"),
        (["heads", "tokens", "--which", "typical", "--measure", "self"], "Add --head, such as 3.1"),
        (
            ["heads", "tokens", "--which", "typical", "--head", "", "--measure", "self"],
            "Add --head, such as 3.1",
        ),
        (
            ["heads", "tokens", "--which", "typical", "--head", "1", "--measure", "self"],
            "Add --head, such as 3.1",
        ),
        (["heads", "tokens", "--which", "typical", "--head", "1.1"], "and --measure"),
        (
            ["heads", "tokens", "--which", "lowest", "--head", "1.1", "--measure", "self", "--bin", "65"],
            "1 to 64",
        ),
        (["histograms", "tokens", "--out", "a.svg"], "has no figure"),
        (["heads", "nowhere"], "Use a folder that was written by bert-probe corpus run."),
        (["histograms", "."], "Use a folder that was written by bert-probe corpus run."),
    ],
)
def test_invalid_questions_raise_readable_errors(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert message in run("corpus", *words).refusal


@pytest.mark.usefixtures("in_store_folder")
def test_result_that_cannot_be_saved_in_a_view_file_is_printed() -> None:
    result = run("corpus", "heads", "tokens", "--save-view", "a.json")
    assert result.status == 2
    assert "cannot be saved in a view file" in result.err
    assert result.out == run("corpus", "heads", "tokens").out
    assert not Path("a.json").exists()


def test_store_without_profiles_or_sentences_is_refused(
    family: Callable[[str], bert_probe.Checkpoint], tmp_path: Path
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("word " * 300, encoding="utf-8")
    empty = bert_probe.build_corpus(
        family("bert"), bert_probe.IngestConfig(keep=("profiles",)), [lines], tmp_path / "a"
    )
    with pytest.raises(UnavailableError, match="has no sentences yet; number of rejected records: 1"):
        bert_probe.HeadStatistics().of(empty)
    assert (
        bert_probe.SqlQuery("SELECT count(*) AS refused FROM refusals").of(empty).table()["refused"][0] == 1
    )
    lines.write_text("A boat.", encoding="utf-8")
    other = bert_probe.build_corpus(
        family("bert"), bert_probe.IngestConfig(keep=("vectors",)), [lines], tmp_path / "b"
    )
    for question in (bert_probe.HeadHistograms(), bert_probe.HeadExamples((0, 0), "self", "lowest")):
        with pytest.raises(UnavailableError, match="--keep vectors,profiles"):
            question.of(other)
    with pytest.raises(UnavailableError, match="--keep vectors,neighbors"):
        bert_probe.AttentionSearch((0, 0), query_pos="NOUN").of(other)
    for wrong in ({"head": (0,)}, {"head": "1.1"}, {"which": "best"}, {"top": 0}):
        with pytest.raises(SelectionError):
            bert_probe.HeadExamples(**{"head": (0, 0), "measure": "self", "which": "lowest"} | wrong)


def test_bins_of_models_without_limit_do_not_depend_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public server reads stores that were built without its limits."""
    edges = bin_edges("mean_distance", None)
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    assert np.array_equal(bin_edges("mean_distance", None), edges)
