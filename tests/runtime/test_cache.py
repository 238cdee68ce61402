"""Test caches: values are computed once per key, sizes are bounded, and keys depend on all inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bert_probe import Attention, Document
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from bert_probe.runtime.cache import Cache, ResultCache, cache_key


def test_concurrent_requests_compute_a_value_once() -> None:
    cache: Cache[str, int] = Cache(10)
    calls: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def make() -> int:
        calls.append(1)
        begun.set()
        assert go_on.wait(10)
        return 7

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(cache.once, "a", make) for _ in range(8)]
        assert begun.wait(10)
        # Requests for another key are not blocked.
        assert cache.once("b", lambda: 3) == 3
        go_on.set()
        assert [future.result(10) for future in futures] == [7] * 8
    assert len(calls) == 1
    assert (cache.get("a"), cache.get("c")) == (7, None)


def test_error_goes_to_one_caller_and_the_next_retries() -> None:
    cache: Cache[str, int] = Cache(10)
    begun, go_on = threading.Event(), threading.Event()

    def cancelled() -> int:
        begun.set()
        assert go_on.wait(10)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.once, "a", cancelled)
        assert begun.wait(10)
        second = pool.submit(cache.once, "a", lambda: 5)
        go_on.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(10)
        assert second.result(10) == 5
    with pytest.raises(ZeroDivisionError):
        cache.once("b", lambda: 1 // 0)
    assert cache.once("b", lambda: 1) == 1


def test_least_recently_used_value_is_evicted() -> None:
    cache: Cache[str, str] = Cache(5, len)
    for key in ("aa", "bb"):
        cache.once(key, lambda key=key: key)  # type: ignore[misc]
    assert cache.get("aa") == "aa"
    cache.once("cc", lambda: "cc")
    assert (cache.get("aa"), cache.get("bb"), cache.get("cc")) == ("aa", None, "cc")
    assert cache.once("long", lambda: "longer") == "longer"
    assert cache.get("long") is None
    cache.drop(lambda key: key == "aa")
    assert cache.values() == ["cc"]


def test_different_texts_have_different_keys(minilm: Checkpoint, family: Callable[[str], Checkpoint]) -> None:
    question = Attention(1)
    traces = [
        minilm.trace("a b", "c"),
        minilm.trace("a", "b c"),
        minilm.trace("a b c"),
        family("bert").trace("a b c"),
    ]
    keys = [cache_key(question, trace) for trace in traces]
    keys += [
        cache_key(Attention(2), traces[0]),
        cache_key(question, *traces[:2]),
        cache_key(question, minilm),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key(question, minilm.trace("a b c")) == cache_key(Attention(1), traces[2])
    cut = minilm.trace("a " * 600, truncate=True)
    assert cache_key(question, cut) != cache_key(question, minilm.trace("a " * 510))


def test_results_are_computed_once_and_progress_is_not_in_the_key(minilm: Checkpoint) -> None:
    class Slots:
        entry_count = 0

        def __enter__(self) -> None:
            self.entry_count += 1

        def __exit__(self, *_: Any) -> None: ...

    slots = Slots()
    answers = ResultCache(1e6, slots)
    trace = minilm.trace("we left")
    first = answers.of(Attention(1).of, trace)
    assert answers.of(Attention(1).of, minilm.trace("we left")) is first
    assert slots.entry_count == 1
    with pytest.raises(SelectionError):
        answers.of(Attention(9).of, trace)
    assert answers.of(Attention(2).of, trace) is not first
    assert slots.entry_count == 3


def test_function_results_are_cached_by_function() -> None:
    class Made:
        nbytes = 1

    def first_function(_text: str) -> Made:
        return Made()

    def second_function(_text: str) -> Made:
        return Made()

    answers = ResultCache(10)
    first = answers.of(first_function, "a")
    assert answers.of(first_function, "a") is first
    assert (
        len(
            {
                id(result)
                for result in (first, answers.of(second_function, "a"), answers.of(first_function, "b"))
            }
        )
        == 3
    )


def test_values_does_not_affect_eviction_order() -> None:
    cache: Cache[str, str] = Cache(2)
    for key in ("a", "b"):
        cache.once(key, lambda key=key: key)  # type: ignore[misc]
    cache.get("a")
    assert sorted(cache.values()) == ["a", "b"]
    cache.once("c", lambda: "c")
    assert (cache.get("a"), cache.get("b")) == ("a", None)


def test_error_in_size_does_not_block_waiters() -> None:
    cache: Cache[str, Any] = Cache(2, len)
    with pytest.raises(TypeError, match="has no len"):
        cache.once("a", lambda: 5)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(cache.once, "a", lambda: "b").result(10) == "b"


def test_waiting_can_be_cancelled() -> None:
    cache: Cache[str, str] = Cache(1)
    begun, go = threading.Event(), threading.Event()

    def make() -> str:
        begun.set()
        assert go.wait(20)
        return "value"

    def give_up() -> None:
        raise Cancelled

    with ThreadPoolExecutor(1) as pool:
        maker = pool.submit(cache.once, "key", make)
        assert begun.wait(20)
        with pytest.raises(Cancelled):
            cache.once("key", make, waiting=give_up)
        go.set()
        assert maker.result(20) == "value"


def test_documents_of_the_same_text_have_different_keys() -> None:
    a = Document("reset your password", "a", "Confidential")
    for b in (
        Document("reset your password", "b", "Confidential"),
        Document("Confidential reset your password", "a"),
        "Confidential reset your password",
    ):
        assert a == b
        assert cache_key("question", (a,)) != cache_key("question", (b,))
    assert cache_key("question", [a]) == cache_key("question", (Document(a.text, a.id, a.title),))
