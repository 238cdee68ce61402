"""Small stores of tagged sentences for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bert_probe
from tests.helpers import treebank
from tests.helpers.stores import EXTRA

BROKEN = "1\tOnly\t_\tADV\n\n"
"""A sentence that cannot be parsed."""

Stores = Callable[[str], bert_probe.Store]


@pytest.fixture(scope="session")
def stores(
    tmp_path_factory: pytest.TempPathFactory, double_family: Callable[[str], bert_probe.Checkpoint]
) -> Stores:
    """Return a factory that returns the store of "tokens" or "words", which has shards of two records.

    A tiny float64 model, whose tokenizer splits most words, has built the store from six sentences and one
    refused sentence before the last.
    """
    root = tmp_path_factory.mktemp("stores")
    file = root / "boats.conllu"
    file.write_text(treebank.SAILING_FILE + treebank.SLEEPING_FILE + BROKEN + EXTRA, encoding="utf-8")
    built: dict[str, bert_probe.Store] = {}

    def store(name: str) -> bert_probe.Store:
        if name not in built:
            gather = bert_probe.IngestConfig(
                layers=(0, -1), keep=("profiles", "vectors", "neighbors"), words=name == "words"
            )
            built[name] = bert_probe.build_corpus(
                double_family("bert"), gather, [file], root / name, shard_rows=2
            )
        return built[name]

    return store


@pytest.fixture
def in_store_folder(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder of the stores, so that the snippets of a result can open them by name."""
    root = stores("tokens").folder.parent
    monkeypatch.chdir(root)
    return root
