"""Test the division of records into chunks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bert_probe
from bert_probe.corpus import workers
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import OPTIONAL_TABLES, IngestConfig, Record
from bert_probe.corpus.store import sentences
from bert_probe.corpus.workers import chunked, max_text_bytes
from bert_probe.errors import SelectionError
from tests.helpers.families import SENTENCES


def record(row: int, text: str | None) -> Record:
    return Record(row, "file", row, text)


def test_chunk_is_limited_by_records_and_bytes() -> None:
    texts = ["ab", "cd", "é", None, "a long one", "f", "g", "h", "i"]
    arguments = [record(row, text) for row, text in enumerate(texts, 1)]
    result = [[record.row for record in part] for part in chunked(iter(arguments), 3, 5)]
    # 2 + 2 + 2 bytes exceed the limit of 5; a record of 10 bytes is a chunk of its own.
    assert result == [[1, 2], [3, 4], [5], [6, 7, 8], [9]]
    assert list(chunked([], 3, 5)) == []


def test_more_tables_make_smaller_chunks(family: Callable[[str], bert_probe.Checkpoint]) -> None:
    checkpoint = family("bert")
    description = checkpoint.description
    question = [
        IngestConfig(keep=("profiles",)),
        IngestConfig(),
        IngestConfig(layers=None),
        IngestConfig(layers=None, keep=("profiles", "vectors", "neighbors")),
    ]
    sizes = [max_text_bytes(config.of(checkpoint), checkpoint) for config in question]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(question)
    assert (
        sizes[1]
        == workers.SHARD_BYTES // (workers.TOKEN_BYTES + description.hidden_size * 4) * workers.TEXT_BYTES
    )
    halves = IngestConfig(dtype="float16").of(checkpoint)
    assert sizes[0] > max_text_bytes(halves, checkpoint) > sizes[1]
    assert OPTIONAL_TABLES[:3] == question[-1].keep


def test_rows_are_found_in_any_chunking(
    family: Callable[[str], bert_probe.Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, file = family("bert"), tmp_path / "lines.txt"
    texts = [SENTENCES[0], "We left.", "We left again.", SENTENCES[1], "It rained."]
    file.write_text("\n".join(texts))
    token = (
        workers.SHARD_BYTES // max_text_bytes(IngestConfig().of(checkpoint), checkpoint) * workers.TEXT_BYTES
    )
    monkeypatch.setattr(workers, "SHARD_BYTES", token * 8)
    store = build_corpus(checkpoint, IngestConfig(), [file], tmp_path / "store", shard_rows=3)
    assert 2 < len(store.shards) < len(texts)
    assert [shard.first for shard in store.shards] != [1, 4]
    assert sum(shard.records for shard in store.shards) == len(texts)
    assert [sentence.text for sentence in sentences(store, [5, 1, 3, 2, 4])] == [
        texts[n] for n in (4, 0, 2, 1, 3)
    ]
    monkeypatch.undo()
    with pytest.raises(SelectionError, match="a different shard size"):
        build_corpus(checkpoint, IngestConfig(), [file], tmp_path / "store", shard_rows=3)
