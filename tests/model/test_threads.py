"""Test concurrency: threads that share a model, and several models at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bert_probe.model.checkpoint import Checkpoint
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
