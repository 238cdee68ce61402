"""What was computed is kept, within a bound, and computed once however many ask for it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Generic, ParamSpec, TypeVar

import cachetools

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime.semaphore import await_done

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")


class Cache(Generic[K, V]):
    """Values by key, the least recently used out first; safe to use from several threads.

    Args:
        most: the sizes of all values together stay within this. A value larger than that is not kept.
        size: of a value; each counts 1 unless given.

    Attributes:
        asked: how often a value was asked for.
        made: how often it had to be made for that.
    """

    def __init__(self, most: float, size: Callable[[V], float] = lambda _: 1) -> None:
        self._kept: cachetools.LRUCache[K, V] = cachetools.LRUCache(most, getsizeof=size)
        self._flights: dict[K, Future[V]] = {}
        self._lock = threading.Lock()
        self.asked = self.made = 0

    @property
    def held(self) -> tuple[int, float]:
        """How many values are kept, and their sizes together."""
        with self._lock:
            return len(self._kept), self._kept.currsize

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        with self._lock:
            return self._kept.get(key)

    def values(self) -> list[V]:
        """All that is kept; to look through it counts as no use of any."""
        with self._lock:
            # The subclass would note each of them as used last.
            return [cachetools.Cache.__getitem__(self._kept, key) for key in self._kept]

    def once(self, key: K, make: Callable[[], V], waiting: Callable[[], None] = lambda: None) -> V:
        """The value of a key, made if need be. Whoever asks while it is made waits for it.

        Args:
            waiting: called now and then by one who waits; what it raises ends the waiting.

        What ``make`` raises goes to the one whose it is; one of those who wait then makes it in turn, so
        that nobody bears the cancelling of another.
        """
        with self._lock:
            self.asked += 1
        while True:
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
                flight = self._flights.get(key)
                mine = flight is None
                self.made += mine
                if flight is None:
                    flight = self._flights[key] = Future()
            if mine:
                return self._make(key, make, flight)
            await_done(flight, waiting)
            if flight.exception() is None:
                return flight.result()

    def _make(self, key: K, make: Callable[[], V], flight: Future[V]) -> V:
        try:
            value = make()
            with self._lock, suppress(ValueError):  # which says that it is larger than all that may be kept
                self._kept[key] = value
        except BaseException as error:
            with self._lock:
                del self._flights[key]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._flights[key]
        flight.set_result(value)
        return value

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Let go of all keys of which this is so."""
        with self._lock:
            for key in [key for key in self._kept if unwanted(key)]:
                del self._kept[key]


class ResultCache:
    """Answers to questions, made once for all who ask.

    Attributes:
        cache: what keeps them.

    Args:
        most: bytes of all of them together.
        slots: taken while one is made; it bounds how many are at once. Work that reports takes none: it
            goes in small steps, for as long as it lasts, and its jobs are bounded themselves.
    """

    def __init__(self, most: float, slots: AbstractContextManager[Any] | None = None) -> None:
        self.cache: Cache[tuple[Hashable, ...], Any] = Cache(most, lambda result: max(1, result.nbytes))
        self._slots: AbstractContextManager[Any] = nullcontext() if slots is None else slots

    def forget(self) -> None:
        """Let go of all."""
        self.cache.drop(lambda _: True)

    def of(self, ask: Callable[P, R], *subjects: P.args, **more: P.kwargs) -> R:
        """The answer of a question's own ``of``: ``answers.of(Heads(words=True).of, trace)``.

        Or what a function makes of the same subjects, such as `head_outputs`, with its ``nbytes``. A
        ``report`` among the arguments is no cause of the answer.

        Raises:
            ProbeError: what the question raises.
        """

        def make() -> R:
            with nullcontext() if "report" in more else self._slots:
                return ask(*subjects, **more)

        answer: R = self.cache.once(_key(ask, subjects, more), make)
        return answer

    def has(self, ask: Callable[P, R], *subjects: P.args, **more: P.kwargs) -> bool:
        """Whether `of` would answer at once."""
        return self.cache.get(_key(ask, subjects, more)) is not None


def _key(ask: Any, subjects: tuple[Any, ...], more: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """Of an answer that is kept."""
    causes = tuple(sorted((name, value) for name, value in more.items() if name != "report"))
    return (*key_of(ask, *subjects), causes)


def key_of(asked: Hashable, *subjects: Any) -> tuple[Hashable, ...]:
    """Every cause of an answer, as one value: the question, or its ``of``, and all that tells its subjects
    apart.

    Keys are compared as a whole, so that no two texts can meet in one entry.
    """
    return (getattr(asked, "__self__", asked), *map(_cause, subjects))


def _cause(subject: Any) -> Hashable:
    if isinstance(subject, Trace):
        encoding = subject.encoding
        # All of the description: the same weights under another config or tokenizer give other numbers.
        made_by: Hashable = subject if subject.made_by is None else subject.made_by.cause
        return (made_by, encoding.text, encoding.pair, encoding.dropped)
    if isinstance(subject, Checkpoint):
        return subject.cause
    return tuple(map(_cause, subject)) if isinstance(subject, list | tuple) else subject
