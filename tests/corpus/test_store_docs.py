"""The examples of docs/store.md, run without this program's own code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bert_probe
from bert_probe.corpus.ingest import KEPT
from bert_probe.corpus.tables import layouts
from tests.helpers.exactness import assert_exact

DOCUMENT = (Path(__file__).parents[2] / "docs" / "store.md").read_text(encoding="utf-8")


def test_the_examples_count_what_the_program_counts(
    stores: Callable[[str], bert_probe.Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores("tokens")
    shutil.copytree(store.folder, tmp_path / "STORE")
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    assert len(examples) == 4
    assert "bert_probe" not in "".join(examples)
    names: dict[str, Any] = {}
    for example in examples:
        exec(example, names)
    mine = bert_probe.HeadStatistics("previous").of(store).table()
    mine = mine.sort_values("mean", ascending=False, kind="stable").head(3)
    for found in (names["by_duckdb"], names["by_polars"].to_pandas(), names["by_pandas"]):
        assert found[["layer", "head"]].to_numpy().tolist() == mine[["layer", "head"]].to_numpy().tolist()
        assert_exact(found["mean"].to_numpy(), mine["mean"].to_numpy())
    assert names["layers"].to_numpy().tolist() == [[layer, store.tokens] for layer in store.layers]
    assert len(names["last"]) == store.tokens


def test_every_table_and_column_is_told() -> None:
    lines = dict(re.findall(r"^\| `(\w+)` \|(.*)$", DOCUMENT, flags=re.MULTILINE))
    every = layouts(bert_probe.IngestConfig(keep=KEPT), 8)
    assert lines.keys() == every.keys()
    for name, layout in every.items():
        told = re.sub(r" \(.*?\)", "", lines[name].rpartition(" | ")[2]).removesuffix(" |").split(", ")
        columns = layout.schema.names
        assert told == (
            [*columns[:3], "and the measures of `bert-probe heads`"] if name == "profiles" else columns
        )
