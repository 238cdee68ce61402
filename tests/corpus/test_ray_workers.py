"""Test Ray workers without Ray; `make prove` runs them with Ray."""

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
from bert_probe.core import extras
from bert_probe.corpus import workers
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.store import open_corpus
from bert_probe.corpus.workers import PendingChunks, RayActor, RayRunner, ShardJob
from bert_probe.errors import CheckpointError, StoreError, UnavailableError
from tests.helpers.command_line import bert_probe as command
from tests.helpers.families import SENTENCES
from tests.helpers.treebank import conllu

Checkpoints = Callable[[str], bert_probe.Checkpoint]
QUESTION = IngestConfig(keep=("profiles", "vectors", "neighbors"))
TREE = conllu((("A", "DET", 2, "det"), ("boat", "NOUN", 3, "nsubj"), ("sank", "VERB", 0, "root")))


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    (tmp_path / "lines.txt").write_text("\n".join([*SENTENCES, "word " * 300]), encoding="utf-8")
    (tmp_path / "tree.conllu").write_text(TREE, encoding="utf-8")
    return [tmp_path / "lines.txt", tmp_path / "tree.conllu"]


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Ray with a stub that pickles and unpickles the actor in this process."""

    @contextmanager
    def ready(*_: object) -> Iterator[int]:
        yield torch.get_num_threads()

    def run_actors(_: ShardJob, chunks: PendingChunks, actor: RayActor, *__: object) -> Iterator[Any]:
        return map(pickle.loads(pickle.dumps(actor)).run, chunks)

    monkeypatch.setattr(workers, "ready", ready)
    monkeypatch.setattr(workers, "run_actors", run_actors)
    monkeypatch.setitem(sys.modules, "ray", _cluster(CPU=64.0))


def _cluster(**resources: float) -> Any:
    """Return a stub for the ray package."""
    return SimpleNamespace(cluster_resources=lambda: resources, __spec__=workers.__spec__)


@pytest.mark.usefixtures("without_ray")
def test_ray_store_equals_local_store(family: Checkpoints, inputs: list[Path], tmp_path: Path) -> None:
    checkpoint = family("bert")
    here = build_corpus(checkpoint, QUESTION, inputs, tmp_path / "here", shard_rows=4)
    progress: list[tuple[int, int]] = []
    remote = build_corpus(
        checkpoint,
        QUESTION,
        inputs,
        tmp_path / "there",
        shard_rows=4,
        on=RayRunner(),
        progress=lambda *done: progress.append(done),
    )
    assert (remote.rows, remote.refusals, len(remote.shards)) == (len(SENTENCES) + 1, 1, 3)
    assert remote.digest == here.digest
    assert remote.manifest == here.manifest
    assert [counts for counts in progress if counts[1]] == [(0, 9), (4, 9), (8, 9), (9, 9)]


@pytest.mark.usefixtures("without_ray")
def test_failed_actor_ends_run_that_can_be_continued(
    family: Checkpoints, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ShardJob.run

    def failing(self: ShardJob, number: int, chunk: Any) -> Any:
        if number == 1:
            raise StoreError("The disk is full.")
        return run(self, number, chunk)

    monkeypatch.setattr(ShardJob, "run", failing)
    with pytest.raises(StoreError, match="The disk is full"):
        build_corpus(family("bert"), QUESTION, inputs, tmp_path / "store", shard_rows=4, on=RayRunner())
    assert [shard.number for shard in open_corpus(tmp_path / "store").shards] == [0]
    monkeypatch.undo()
    assert build_corpus(family("bert"), QUESTION, inputs, tmp_path / "store", shard_rows=4).finished


def test_actor_loads_same_model_or_returns_error(
    family: Checkpoints, family_folder: Callable[[str], Path], inputs: list[Path], tmp_path: Path
) -> None:
    checkpoint = family("bert")
    store = build_corpus(checkpoint, QUESTION, inputs, tmp_path / "store")
    actor = RayActor.of(ShardJob(store.folder, checkpoint, store.question), "cpu", torch.get_num_threads())
    assert actor.job.checkpoint is not checkpoint
    assert actor.job.checkpoint.provenance() == checkpoint.provenance() | {"model": actor.model}

    def error_of(**other: Any) -> str:
        result = replace(actor, **other).run((0, ()))
        assert isinstance(result, (StoreError, CheckpointError))
        return str(result)

    assert "nowhere does not exist on" in error_of(folder=tmp_path / "nowhere")
    assert "has different weights_sha256." in error_of(model=str(family_folder("roberta")))
    libraries = actor.provenance | {"libraries": {"torch": "1.0"}}
    assert "has different libraries. Install the same" in error_of(provenance=libraries)
    assert "There is no folder" in error_of(model=str(tmp_path / "nowhere"))


@pytest.mark.usefixtures("without_ray")
def test_impossible_ray_run_is_refused_before_it_starts(
    family_folder: Callable[[str], Path],
    inputs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def error_of(ray: RayRunner, checkpoint: bert_probe.Checkpoint) -> str:
        with pytest.raises(UnavailableError) as caught:
            build_corpus(checkpoint, QUESTION, inputs, tmp_path / "store", on=ray)
        return str(caught.value)

    folder = family_folder("bert")
    wrapped = bert_probe.wrap(AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    assert "Other processes cannot open a model that is only in memory" in error_of(RayRunner(), wrapped)
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError) as caught:
        RayRunner()
    assert str(caught.value) == (
        'ray is not installed. Install it with pip install "bert-probe[ray]", or run on local.'
    )


@pytest.mark.usefixtures("without_ray")
def test_missing_ray_resources_are_refused(
    family: Checkpoints, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", _cluster(CPU=64.0, GPU=1.0))
    with pytest.raises(UnavailableError, match=r"3 workers need 1\.5 GPUs, but Ray has 1\. Use fewer"):
        build_corpus(
            family("bert"), QUESTION, inputs, tmp_path / "store", on=RayRunner(workers=3, num_gpus=0.5)
        )
    # The folder contains no shard yet, so another run may use it.
    assert open_corpus(tmp_path / "store").manifest["model"]["device"] == "cuda:0"
    again = build_corpus(family("bert"), QUESTION, inputs, tmp_path / "store", on=RayRunner(workers=3))
    assert again.finished
    assert again.manifest["model"]["device"] == "cpu"


def test_ray_options_without_ray_are_refused(inputs: list[Path], tmp_path: Path) -> None:
    arguments = [
        "corpus",
        "run",
        str(inputs[0]),
        "--out",
        str(tmp_path / "store"),
        "--address",
        "10.0.0.1:6379",
    ]
    assert "apply to Ray only. Add --on ray" in command(*arguments).refusal
