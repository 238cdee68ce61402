"""Measure the time of head statistics for a corpus store, relative to DuckDB on the same tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import bert_probe
from benchmarks.corpus_cost import LENGTHS, make_texts
from benchmarks.pairs import Line, paired
from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.heads import QUANTILES, HeadStatistics, HeadStatisticsResult, head_statistics
from bert_probe.corpus.inputs import PROFILES, IngestConfig
from bert_probe.corpus.store import Store

SENTENCES = 5_000


def lines() -> Iterator[Line]:
    checkpoint = bert_probe.load()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.txt"
        source.write_text("".join(f"{text}\n" for text in make_texts(SENTENCES, LENGTHS)), "utf-8")
        store = build_corpus(checkpoint, IngestConfig(keep=(PROFILES,)), [source], Path(folder) / "store")
        size = f"{SENTENCES:,} sentences, {store.sizes.layers * store.sizes.heads} heads"
        yield _line(
            f"Means, intervals, quantiles and extremes of {len(MEASURES)} measures ({size})",
            partial(HeadStatistics().of, store),
            partial(_query, store, MEASURES, True),
            _difference(HeadStatistics().of(store), _query(store, MEASURES, True)),
        )
        yield _line(
            f"The same for one measure ({size})",
            partial(HeadStatistics("entropy_bits").of, store),
            partial(_query, store, ["entropy_bits"], True),
            _difference(HeadStatistics("entropy_bits").of(store), _query(store, ["entropy_bits"], True)),
        )
        yield _line(
            f"Means and extremes of {len(MEASURES)} measures, from the stored statistics ({size})",
            partial(head_statistics, store),
            partial(_query, store, MEASURES, False),
            "",
        )


def _line(what: str, ours: Any, rival: Any, difference: str) -> Line:
    measured = paired(ours, rival)
    low, high = measured.spread
    return Line(
        what,
        "DuckDB: one query with GROUP BY layer, head on the profiles of the store",
        f"{measured.ratio:.2f} × ({low:.2f} to {high:.2f}){difference}",
        "",
        None,
    )


def _query(store: Store, measures: Any, with_quantiles: bool) -> dict[str, Any]:
    """Compute count, mean, minimum, maximum and quantiles for each measure and head with DuckDB."""
    columns = [
        column
        for measure in measures
        for column in (
            f"avg({measure}::DOUBLE) AS {measure}_mean",
            f"min({measure}) AS {measure}_min",
            f"max({measure}) AS {measure}_max",
            *([f"quantile_cont({measure}::DOUBLE, {[*QUANTILES]}) AS {measure}_q"] * with_quantiles),
        )
    ]
    files = [str(file) for file in store.files(PROFILES)]
    with duckdb.connect() as connection:
        table = connection.execute(
            f"SELECT count(*) AS count, {', '.join(columns)} FROM read_parquet($files) "
            "GROUP BY layer, head ORDER BY layer, head",
            {"files": files},
        ).fetchnumpy()
    return dict(table)


def _difference(result: HeadStatisticsResult, table: dict[str, Any]) -> str:
    """Return the largest absolute differences of means and quantiles, and whether extremes are equal."""
    means, quantiles, equal = [], [], True
    for number, measure in enumerate(result.measures):
        means.append(np.abs(table[f"{measure}_mean"] - result.means[number]).max())
        quantiles.append(np.abs(np.stack(table[f"{measure}_q"].tolist()) - result.quantiles[number]).max())
        equal &= bool((table[f"{measure}_min"] == result.minima[number]).all())
        equal &= bool((table[f"{measure}_max"] == result.maxima[number]).all())
    extremes = "equal" if equal else "different"
    return f"; means differ by {max(means):.1e}, quantiles by {max(quantiles):.1e}, extremes are {extremes}"
