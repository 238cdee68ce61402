"""Run the examples of docs/store.md, which do not use BERT Probe."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bert_probe
from bert_probe.corpus.inputs import OPTIONAL_TABLES
from bert_probe.corpus.schema import layouts
from tests.helpers.exactness import assert_exact

DOCUMENT = (Path(__file__).parents[2] / "docs" / "store.md").read_text(encoding="utf-8")


def test_examples_match_program(
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
    own = bert_probe.HeadStatistics("previous").of(store).table()
    own = own.sort_values("mean", ascending=False, kind="stable").head(3)
    for result in (names["by_duckdb"], names["by_polars"].to_pandas(), names["by_pandas"]):
        assert result[["layer", "head"]].to_numpy().tolist() == own[["layer", "head"]].to_numpy().tolist()
        assert_exact(result["mean"].to_numpy(), own["mean"].to_numpy())
    assert names["layers"].to_numpy().tolist() == [[layer, store.tokens] for layer in store.layers]
    assert len(names["last"]) == store.tokens


def test_every_table_and_column_is_documented() -> None:
    lines = dict(re.findall(r"^\| `(\w+)` \|(.*)$", DOCUMENT, flags=re.MULTILINE))
    every = layouts(bert_probe.IngestConfig(keep=OPTIONAL_TABLES), 8)
    assert lines.keys() == every.keys()
    for name, layout in every.items():
        events = re.sub(r" \(.*?\)", "", lines[name].rpartition(" | ")[2]).removesuffix(" |").split(", ")
        columns = layout.schema.names
        assert events == (
            [*columns[:3], "and the measures of `bert-probe heads`"] if name == "profiles" else columns
        )
