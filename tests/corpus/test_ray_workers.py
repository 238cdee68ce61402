"""What processes of Ray do with a part of a corpus, without Ray, which `make prove` starts."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.corpus import ray_workers
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.ray_workers import RayActor, RayRunner
from bert_probe.corpus.store import open_corpus
from bert_probe.corpus.workers import PendingChunks, ShardJob
from bert_probe.errors import CheckpointError, StoreError, UnavailableError
from tests.helpers.command_line import bert_probe as command
from tests.helpers.families import SENTENCES
from tests.helpers.treebank import conllu

Checkpoints = Callable[[str], bert_probe.Checkpoint]
QUESTION = IngestConfig(keep=("profiles", "vectors", "neighbours"))
TREE = conllu((("A", "DET", 2, "det"), ("boat", "NOUN", 3, "nsubj"), ("sank", "VERB", 0, "root")))


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    (tmp_path / "lines.txt").write_text("\n".join([*SENTENCES, "word " * 300]), encoding="utf-8")
    (tmp_path / "tree.conllu").write_text(TREE, encoding="utf-8")
    return [tmp_path / "lines.txt", tmp_path / "tree.conllu"]


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an actor is made of goes through bytes, and stays within this process."""

    @contextmanager
    def ready(*_: object) -> Iterator[int]:
        yield torch.get_num_threads()

    def entries(_: ShardJob, parts: PendingChunks, actor: RayActor, *__: object) -> Iterator[Any]:
        return map(pickle.loads(pickle.dumps(actor)).found, parts)

    monkeypatch.setattr(ray_workers, "ready", ready)
    monkeypatch.setattr(ray_workers, "entries", entries)
    monkeypatch.setitem(sys.modules, "ray", _cluster(CPU=64.0))


def _cluster(**resources: float) -> Any:
    """What stands for the package."""
    return SimpleNamespace(cluster_resources=lambda: resources, __spec__=ray_workers.__spec__)


@pytest.mark.usefixtures("without_ray")
def test_a_store_is_the_same_as_without(family: Checkpoints, inputs: list[Path], tmp_path: Path) -> None:
    checkpoint = family("bert")
    here = build_corpus(checkpoint, QUESTION, inputs, tmp_path / "here", shard_rows=4)
    progress: list[tuple[int, int]] = []
    there = build_corpus(
        checkpoint,
        QUESTION,
        inputs,
        tmp_path / "there",
        shard_rows=4,
        on=RayRunner(),
        report=lambda *done: progress.append(done),
    )
    assert (there.rows, there.refusals, len(there.shards)) == (len(SENTENCES) + 1, 1, 3)
    assert there.digest == here.digest
    assert there.manifest == here.manifest
    assert [one for one in progress if one[1]] == [(0, 9), (4, 9), (8, 9), (9, 9)]


@pytest.mark.usefixtures("without_ray")
def test_an_actor_that_fails_ends_the_run_and_another_goes_on(
    family: Checkpoints, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = ShardJob.do

    def failing(self: ShardJob, number: int, part: Any) -> Any:
        if number == 1:
            raise StoreError("The disk is full.")
        return do(self, number, part)

    monkeypatch.setattr(ShardJob, "do", failing)
    with pytest.raises(StoreError, match="The disk is full"):
        build_corpus(family("bert"), QUESTION, inputs, tmp_path / "store", shard_rows=4, on=RayRunner())
    assert [shard.number for shard in open_corpus(tmp_path / "store").shards] == [0]
    monkeypatch.undo()
    assert build_corpus(family("bert"), QUESTION, inputs, tmp_path / "store", shard_rows=4).finished


def test_an_actor_opens_the_model_of_the_store_or_says_why_not(
    family: Checkpoints, family_folder: Callable[[str], Path], inputs: list[Path], tmp_path: Path
) -> None:
    checkpoint = family("bert")
    store = build_corpus(checkpoint, QUESTION, inputs, tmp_path / "store")
    actor = RayActor.of(ShardJob(store.folder, checkpoint, store.question), "cpu", torch.get_num_threads())
    assert actor.job.checkpoint is not checkpoint
    assert actor.job.checkpoint.provenance() == checkpoint.provenance() | {"model": actor.model}

    def said(**other: Any) -> str:
        found = replace(actor, **other).found((0, ()))
        assert isinstance(found, (StoreError, CheckpointError))
        return str(found)

    assert "nowhere is not there on" in said(folder=tmp_path / "nowhere")
    assert "with other weights_sha256." in said(model=str(family_folder("roberta")))
    libraries = actor.provenance | {"libraries": {"torch": "1.0"}}
    assert "with other libraries. Install the same" in said(provenance=libraries)
    assert "There is no folder" in said(model=str(tmp_path / "nowhere"))


def test_a_run_that_cannot_be_is_told_before_it_begins(
    family_folder: Callable[[str], Path],
    inputs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said(ray: RayRunner, checkpoint: bert_probe.Checkpoint) -> str:
        with pytest.raises(UnavailableError) as told:
            build_corpus(checkpoint, QUESTION, inputs, tmp_path / "store", on=ray)
        return str(told.value)

    folder = family_folder("bert")
    wrapped = bert_probe.wrap(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    assert "A model in memory cannot be opened by other processes" in said(RayRunner(), wrapped)
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(ray_workers, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match=r'Run pip install "bert-probe\[ray\]"'):
        RayRunner()


@pytest.mark.usefixtures("without_ray")
def test_actors_that_find_no_room_are_not_waited_for(
    family: Checkpoints, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", _cluster(CPU=64.0, GPU=1.0))
    with pytest.raises(UnavailableError, match=r"3 workers need 1\.5 GPUs, and Ray has 1\. Give fewer"):
        build_corpus(
            family("bert"), QUESTION, inputs, tmp_path / "store", on=RayRunner(workers=3, num_gpus=0.5)
        )
    # Nothing was written yet, so that the folder may as well become the store of another run.
    assert open_corpus(tmp_path / "store").manifest["model"]["device"] == "cuda:0"
    again = build_corpus(family("bert"), QUESTION, inputs, tmp_path / "store", on=RayRunner(workers=3))
    assert again.finished
    assert again.manifest["model"]["device"] == "cpu"


def test_the_command_says_what_belongs_to_ray(inputs: list[Path], tmp_path: Path) -> None:
    given = ["corpus", "run", str(inputs[0]), "--out", str(tmp_path / "store"), "--address", "10.0.0.1:6379"]
    assert "are of Ray. Add --on ray" in command(*given).refusal
