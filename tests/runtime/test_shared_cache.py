"""Test shared traces: concurrent requests share a forward pass, with the results of separate passes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from bert_probe import HiddenStates, load
from bert_probe.errors import TextError, TooLongError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN, TUNED_LENS, stamp
from bert_probe.model.tokenizer_files import OTHER_TOKENIZER_FILES
from bert_probe.runtime import shared_cache
from tests.helpers.families import build
from tests.helpers.folders import change_config

TEXTS = ("a boat", "the small boat crosses", "we had left", "the wide river at night", "no bridge")


@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_concurrent_texts_share_a_forward_pass(
    double_family: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint: Checkpoint = double_family(name)
    passes: list[int] = []
    once = Checkpoint.trace_encodings

    def counted(self: Checkpoint, encodings: Any) -> Any:
        passes.append(len(encodings))
        return once(self, encodings)

    monkeypatch.setattr(Checkpoint, "trace_encodings", counted)
    shared_cache.evict(checkpoint.description.name)
    together = Barrier(len(TEXTS))

    def ask(text: str) -> Any:
        together.wait(30)
        return shared_cache.traces(checkpoint, [(text, None)], truncate=False)[0]

    with ThreadPoolExecutor(len(TEXTS)) as pool:
        with shared_cache.passes, shared_cache.passes:  # Both slots are in use, so all requests wait.
            futures = [pool.submit(ask, text) for text in TEXTS]
            while shared_cache.passes.waiting < len(TEXTS):
                time.sleep(0.001)
        traces = [future.result(60) for future in futures]
    assert sum(passes) == len(TEXTS) > len(passes)
    for text, trace in zip(TEXTS, traces, strict=True):
        alone = checkpoint.trace(text)
        assert trace.encoding.text == text
        for layer in range(alone.layers):
            np.testing.assert_allclose(trace.attention(layer), alone.attention(layer), rtol=0, atol=1e-12)
        np.testing.assert_allclose(trace.vectors(layer + 1), alone.vectors(layer + 1), rtol=0, atol=1e-12)


def test_invalid_text_does_not_affect_others(double_minilm: Checkpoint) -> None:
    with ThreadPoolExecutor(2) as pool:
        with shared_cache.passes, shared_cache.passes:
            bad = pool.submit(shared_cache.traces, double_minilm, [("a " * 600, None)], False)
            good = pool.submit(shared_cache.traces, double_minilm, [("a small boat", None)], False)
            assert isinstance(bad.exception(60), TooLongError)
        assert good.result(60)[0].encoding.text == "a small boat"


def test_traces_of_a_list_of_texts_are_limited(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(f"a boat {number}", None) for number in range(6)]
    traces = shared_cache.traces(minilm, texts, truncate=False)
    assert len(traces) == 6
    monkeypatch.setattr(lengths, "MAX_TRACE_BYTES", sum(trace.nbytes for trace in traces[:4]))
    with pytest.raises(TextError, match="first 5 texts need more than"):
        shared_cache.traces(minilm, texts, truncate=False)


@pytest.mark.parametrize("name", ["{}", "{} "])
@pytest.mark.parametrize("is_evicted", [False, True])
def test_results_of_changed_files_are_computed_again(tmp_path: Path, name: str, is_evicted: bool) -> None:
    build("bert", tmp_path)
    model = name.format(tmp_path)

    def answer() -> Any:
        checkpoint = shared_cache.open_checkpoint(model, "")
        trace = shared_cache.traces(checkpoint, [(TEXTS[0], None)], truncate=False)[0]
        return shared_cache.answers.of(HiddenStates(layer=1).of, trace).table().to_numpy()

    before = answer()
    if is_evicted:
        shared_cache.evict(model)
    change_config(tmp_path, layer_norm_eps=0.5)  # the digest of the weights remains the same
    raw = load(tmp_path).trace(TEXTS[0]).vectors(1)
    assert np.array_equal(answer(), raw)
    assert np.abs(before - raw).max() > 0.01


def test_vocabularies_are_part_of_the_stamp(tmp_path: Path) -> None:
    stamps = [stamp(str(tmp_path))]
    (tmp_path / f"{TUNED_LENS}x.safetensors").write_text("x")
    assert stamp(str(tmp_path)) is None
    for name in (
        "config.json",
        *(pattern.replace("*", f"x{number}") for number, pattern in enumerate(OTHER_TOKENIZER_FILES)),
    ):
        (tmp_path / name).write_text("x")
        stamps.append(stamp(str(tmp_path)))
    assert len({*stamps}) == len(stamps)


def test_forms_of_a_name_share_a_checkpoint(tmp_path: Path) -> None:
    build("bert", tmp_path)
    names = [f"{' ' * left}{tmp_path}{' ' * right}" for left in range(2) for right in range(2)]
    assert len({id(shared_cache.open_checkpoint(name, "")) for name in names}) == 1
    assert shared_cache.open_checkpoint("", "") is shared_cache.open_checkpoint(f" {BUILT_IN}", " ")
