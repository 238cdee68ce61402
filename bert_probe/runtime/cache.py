"""Bounded caches that compute each value once, even if several threads request it concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Generic, ParamSpec, TypeVar

import cachetools

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime.jobs import await_done
from bert_probe.text.documents import Document, DocumentList
from bert_probe.text.sentence_files import Sentence

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")


class Cache(Generic[K, V]):
    """A thread-safe cache that evicts the least recently used value first.

    Args:
        max_size: limit of the total size. A single value above the limit is returned but not stored.
        size: function that returns the size of a value; by default 1 per value.

    Attributes:
        lookups: number of requests so far.
        misses: number of values computed so far.
    """

    def __init__(self, max_size: float, size: Callable[[V], float] = lambda _: 1) -> None:
        self._size = size
        self._stored: cachetools.LRUCache[K, V] = cachetools.LRUCache(max_size, getsizeof=size)
        self._pending: dict[K, Future[tuple[V] | None]] = {}
        self._lock = threading.Lock()
        self.lookups = self.misses = 0

    @property
    def contents(self) -> tuple[int, float]:
        """Return the number of stored values and their total size."""
        with self._lock:
            return len(self._stored), self._stored.currsize

    def resize(self, max_size: float) -> None:
        """Set the limit of the total size, and discard all stored values."""
        with self._lock:
            self._stored = cachetools.LRUCache(max_size, getsizeof=self._size)

    def get(self, key: K) -> V | None:
        """Return the stored value of a key, or None if there is none."""
        with self._lock:
            return self._stored.get(key)

    def values(self) -> list[V]:
        """Return all stored values, without affecting the eviction order."""
        with self._lock:
            # `LRUCache.values` would mark each value as recently used.
            return [cachetools.Cache.__getitem__(self._stored, key) for key in self._stored]

    def once(self, key: K, make: Callable[[], V], waiting: Callable[[], None] = lambda: None) -> V:
        """Return the value of a key; compute it if it is missing, while concurrent requests for the key wait.

        If ``make`` raises an exception, only the thread that called ``make`` receives it, and one of the
        waiting threads computes the value next. A cancelled request therefore does not cancel others.

        Args:
            key: key of the value.
            make: computes the value.
            waiting: called periodically while waiting; an exception from this callback ends the wait.
        """
        with self._lock:
            self.lookups += 1
        while True:
            with self._lock:
                if key in self._stored:
                    return self._stored[key]
                pending = self._pending.get(key)
                is_owner = pending is None
                self.misses += is_owner
                if pending is None:
                    pending = self._pending[key] = Future()
            if is_owner:
                return self._make(key, make, pending)
            await_done(pending, waiting)
            if (computed := pending.result()) is not None:
                return computed[0]

    def _make(self, key: K, make: Callable[[], V], pending: Future[tuple[V] | None]) -> V:
        try:
            value = make()
            with self._lock, suppress(ValueError):  # ValueError: the value is larger than the cache
                self._stored[key] = value
        except BaseException:
            with self._lock:
                del self._pending[key]
            # The future must not refer to the exception, whose traceback refers to frames that refer to the
            # future. Objects of these frames would stay in memory until the garbage collector runs.
            pending.set_result(None)
            raise
        with self._lock:
            del self._pending[key]
        pending.set_result((value,))
        return value

    def drop(self, condition: Callable[[K], bool]) -> None:
        """Remove all values whose keys satisfy a condition."""
        with self._lock:
            for key in [key for key in self._stored if condition(key)]:
                del self._stored[key]


class ResultCache:
    """A cache of question results, each computed once for all callers.

    Attributes:
        cache: the underlying cache.

    Args:
        max_bytes: limit of the total size in bytes.
        slots: context manager entered while a result is computed, to limit concurrency. Functions with a
            progress callback do not enter it, because they take long and run in jobs, which have their own
            limit.
    """

    def __init__(self, max_bytes: float, slots: AbstractContextManager[Any] | None = None) -> None:
        self.cache: Cache[tuple[Hashable, ...], Any] = Cache(max_bytes, lambda result: max(1, result.nbytes))
        self._slots: AbstractContextManager[Any] = nullcontext() if slots is None else slots

    def of(self, function: Callable[P, R], *inputs: P.args, **options: P.kwargs) -> R:
        """Call a question's method ``of``, or return its cached result for the same question and inputs.

        Usage: ``answers.of(Heads(words=True).of, trace)``.

        Functions that are not methods of a question, such as `head_outputs`, are accepted if their result
        has the attribute ``nbytes``. A progress callback among the arguments is not part of the cache key.

        Raises:
            ProbeError: any error that the question raises.
        """

        def make() -> R:
            with nullcontext() if "progress" in options else self._slots:
                return function(*inputs, **options)

        result: R = self.cache.once(_key(function, inputs, options), make)
        return result

    def has(self, function: Callable[P, R], *inputs: P.args, **options: P.kwargs) -> bool:
        """Return whether `of` would return a stored result for the same arguments."""
        return self.cache.get(_key(function, inputs, options)) is not None


def _key(function: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Hashable, ...]:
    causes = tuple(sorted((name, value) for name, value in options.items() if name != "progress"))
    return (*cache_key(function, *inputs), causes)


def cache_key(question: Hashable, *inputs: Any) -> tuple[Hashable, ...]:
    """Return the cache key of a result: the question and the values that identify its inputs.

    `question` is a question or its method ``of``. Keys contain complete texts instead of digests, so
    different texts never share an entry.
    """
    return (getattr(question, "__self__", question), *map(_input_key, inputs))


def _input_key(value: Any) -> Hashable:
    if isinstance(value, Trace):
        encoding = value.encoding
        model_key: Hashable = value if value.made_by is None else value.made_by.cache_key
        return (model_key, encoding.text, encoding.pair, encoding.dropped)
    if isinstance(value, Checkpoint | Document | DocumentList) or hasattr(type(value), "cache_key"):
        key: Hashable = value.cache_key
        return key
    if isinstance(value, Sentence):  # include the name, because equal sentences may differ in name
        return (str(value), value.name)
    return tuple(map(_input_key, value)) if isinstance(value, list | tuple) else value
