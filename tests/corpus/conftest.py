"""Small stores of tagged sentences that tests of this folder ask."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bert_probe
from tests.helpers import treebank
from tests.helpers.stores import EXTRA

BROKEN = "1\tOnly\t_\tADV\n\n"
"""A sentence that is refused."""

Stores = Callable[[str], bert_probe.Store]


@pytest.fixture(scope="session")
def stores(
    tmp_path_factory: pytest.TempPathFactory, double_family: Callable[[str], bert_probe.Checkpoint]
) -> Stores:
    """Of what its numbers are, "tokens" or "words" → a store in shards of two records.

    It was made by a tiny model in float64 that cuts most words into pieces, of six sentences, and a refused
    one before the last.
    """
    root = tmp_path_factory.mktemp("stores")
    file = root / "boats.conllu"
    file.write_text(treebank.SAILING_FILE + treebank.SLEEPING_FILE + BROKEN + EXTRA, encoding="utf-8")
    made: dict[str, bert_probe.Store] = {}

    def store(name: str) -> bert_probe.Store:
        if name not in made:
            gather = bert_probe.IngestConfig(
                layers=(0, -1), keep=("profiles", "vectors", "neighbours"), words=name == "words"
            )
            made[name] = bert_probe.build_corpus(
                double_family("bert"), gather, [file], root / name, shard_rows=2
            )
        return made[name]

    return store


@pytest.fixture
def beside(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stores, in which one works: the lines of a result open them by their names."""
    root = stores("tokens").folder.parent
    monkeypatch.chdir(root)
    return root
