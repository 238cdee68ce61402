"""Records in parts: few of long texts, and the same ones every time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bert_probe
from bert_probe.corpus import chunks
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.chunks import parted, text_bytes
from bert_probe.corpus.columns import sentences
from bert_probe.corpus.ingest import KEPT, IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.errors import SelectionError
from tests.helpers.families import SENTENCES


def record(row: int, text: str | None) -> Record:
    return Record(row, "file", row, text)


def test_a_part_ends_where_its_texts_or_its_records_are_enough() -> None:
    texts = ["ab", "cd", "é", None, "a long one", "f", "g", "h", "i"]
    given = [record(row, text) for row, text in enumerate(texts, 1)]
    found = [[one.row for one in part] for part in parted(iter(given), 3, 5)]
    # Two and two bytes leave no room for two more; ten are too many for any part, and stand alone.
    assert found == [[1, 2], [3, 4], [5], [6, 7, 8], [9]]
    assert list(parted([], 3, 5)) == []


def test_what_is_kept_of_a_token_makes_parts_smaller(family: Callable[[str], bert_probe.Checkpoint]) -> None:
    checkpoint = family("bert")
    about = checkpoint.description
    asked = [
        IngestConfig(keep=("profiles",)),
        IngestConfig(),
        IngestConfig(layers=None),
        IngestConfig(layers=None, keep=("profiles", "vectors", "neighbours")),
    ]
    sizes = [text_bytes(one.of(checkpoint), checkpoint) for one in asked]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(asked)
    assert sizes[1] == chunks.SHARD_BYTES // (chunks.TOKEN_BYTES + about.hidden_size * 4) * chunks.TEXT_BYTES
    halves = IngestConfig(dtype="float16").of(checkpoint)
    assert sizes[0] > text_bytes(halves, checkpoint) > sizes[1]
    assert KEPT[:3] == asked[-1].keep


def test_rows_of_a_store_are_found_whatever_its_parts(
    family: Callable[[str], bert_probe.Checkpoint], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, file = family("bert"), tmp_path / "lines.txt"
    texts = [SENTENCES[0], "We left.", "We left again.", SENTENCES[1], "It rained."]
    file.write_text("\n".join(texts))
    token = chunks.SHARD_BYTES // text_bytes(IngestConfig().of(checkpoint), checkpoint) * chunks.TEXT_BYTES
    monkeypatch.setattr(chunks, "SHARD_BYTES", token * 8)
    store = build_corpus(checkpoint, IngestConfig(), [file], tmp_path / "store", shard_rows=3)
    assert 2 < len(store.shards) < len(texts)
    assert [shard.first for shard in store.shards] != [1, 4]
    assert sum(shard.records for shard in store.shards) == len(texts)
    assert [sentence.text for sentence in sentences(store, [5, 1, 3, 2, 4])] == [
        texts[n] for n in (4, 0, 2, 1, 3)
    ]
    monkeypatch.undo()
    with pytest.raises(SelectionError, match="shards of another size"):
        build_corpus(checkpoint, IngestConfig(), [file], tmp_path / "store", shard_rows=3)
