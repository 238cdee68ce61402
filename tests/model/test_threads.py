"""Test concurrency: threads that share a model, and several models at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe.model import weights
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array
from tests.helpers.exactness import assert_repeatable
from tests.helpers.families import PAIR, SENTENCES, TEXT


def test_threads_sharing_a_checkpoint_get_equal_results(minilm: Checkpoint) -> None:
    texts = [f"{sentence} {PAIR}" for sentence in SENTENCES] * 4
    expected = {text: minilm.trace(text) for text in set(texts)}
    start = threading.Barrier(6)

    def work(text: str) -> tuple[str, Any]:
        return text, minilm.trace(text)

    with ThreadPoolExecutor(6, initializer=start.wait) as pool:
        for text, trace in pool.map(work, texts):
            assert_repeatable(trace.hidden_states, expected[text].hidden_states)
            assert_repeatable(trace.attention(3), expected[text].attention(3))


def test_concurrent_checkpoints_record_separately(family: Callable[[str], Checkpoint]) -> None:
    first, second = family("bert"), family("roberta")
    expected = {name: family(name).trace(TEXT).attention(1) for name in ("bert", "roberta")}

    def work(number: int) -> None:
        checkpoint = (first, second)[number % 2]
        trace = checkpoint.trace(TEXT)
        assert_repeatable(trace.attention(1), expected[checkpoint.description.family])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))


def test_threads_with_and_without_truncation_are_independent(
    minilm: Checkpoint,
) -> None:
    long = "word " * 600

    def work(number: int) -> int:
        if number % 2:
            return len(minilm.encode(long, truncate=True))
        return len(minilm.encode("word " * 400))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(200))) == [402, 512] * 100


def test_models_are_built_one_after_the_other(tmp_path: Path) -> None:
    """transformers sets and restores torch's default dtype while it builds a model."""
    is_first_inside, go_on = threading.Event(), threading.Event()

    class Model:
        config = SimpleNamespace(model_type="bert")

        @classmethod
        def from_pretrained(cls, *_: object, dtype: torch.dtype, **_options: object) -> tuple[object, object]:
            before = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            try:
                is_first_inside.set()
                assert dtype == torch.float64 or go_on.wait(20)
            finally:
                torch.set_default_dtype(before)
            return SimpleNamespace(config=cls.config, named_parameters=lambda: ()), None

    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(weights.read, Model, tmp_path, None, torch.bfloat16, "sdpa")
            assert is_first_inside.wait(20)
            second = pool.submit(weights.read, Model, tmp_path, None, torch.float64, "sdpa")
            with pytest.raises(TimeoutError):
                second.result(0.2)
            go_on.set()
            first.result(20)
            second.result(20)
        assert torch.get_default_dtype() == torch.float32
    finally:
        go_on.set()
        torch.set_default_dtype(torch.float32)


def test_models_of_several_data_types_are_opened_at_once(family_folder: Callable[[str], Path]) -> None:
    folder = family_folder("bert")
    dtypes = ("float32", "bfloat16", "float16", "float64")
    text = "A small boat crosses the wide river."

    def last(checkpoint: Checkpoint) -> Array:
        return checkpoint.trace(text).vectors(checkpoint.description.layers)

    expected = {dtype: last(bert_probe.load(folder, dtype=dtype)) for dtype in dtypes}
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda dtype: bert_probe.load(folder, dtype=dtype), dtypes * 4))
    assert torch.get_default_dtype() == torch.float32
    for checkpoint in opened:
        np.testing.assert_array_equal(last(checkpoint), expected[checkpoint.description.dtype])
