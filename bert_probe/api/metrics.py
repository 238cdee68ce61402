"""What Prometheus is told: passes and who waits for them, what is kept, memory, and who asked how often."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import psutil

from bert_probe.runtime import shared_cache
from bert_probe.runtime.jobs import SLOTS

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Mapping[str, str], float]]
"""Labels and value of each."""


class RequestMetrics:
    """How often each question was asked, what came of it, and how long that took."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, analysis: str, status: int, seconds: float) -> None:
        """One more answer."""
        with self._lock:
            self._counts[analysis, status] += 1
            self._seconds[analysis] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """Both, as Prometheus reads them."""
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        labelled = [({"analysis": name, "status": str(code)}, n) for (name, code), n in counts.items()]
        yield from _family("api_requests_total", "counter", "Answers of the HTTP API.", labelled)
        spent = [({"analysis": name}, took) for name, took in seconds.items()]
        yield from _family("api_request_seconds_total", "counter", "Seconds that they took.", spent)


def render(asked: RequestMetrics) -> str:
    """All of it."""
    return "\n".join([*_queues(), *_caches(), *_memory(), *asked.lines(), ""])


def _queues() -> Iterator[str]:
    queues = {"passes": shared_cache.passes, "long": SLOTS}
    taken = [({"queue": queue}, one.taken) for queue, one in queues.items()]
    yield from _family("queue_started_total", "counter", "Work that had its turn.", taken)
    waited = [({"queue": queue}, one.waited) for queue, one in queues.items()]
    about = "Seconds that work has waited for its turn."
    yield from _family("queue_waited_seconds_total", "counter", about, waited)
    waiting = [({"queue": queue}, one.waiting) for queue, one in queues.items()]
    yield from _family("queue_waiting", "gauge", "Work that waits for its turn now.", waiting)


def _caches() -> Iterator[str]:
    every = shared_cache.caches()
    asked = [({"cache": name}, cache.asked) for name, cache in every.items()]
    made = [({"cache": name}, cache.made) for name, cache in every.items()]
    yield from _family("cache_lookups_total", "counter", "How often something kept was asked for.", asked)
    yield from _family("cache_misses_total", "counter", "How often it had to be made for that.", made)
    held = {name: cache.held for name, cache in every.items()}
    entries = [({"cache": name}, count) for name, (count, _) in held.items()]
    yield from _family("cache_entries", "gauge", "What is kept; checkpoints are open models.", entries)
    sizes = [({"cache": name}, size) for name, (_, size) in held.items() if name != "checkpoints"]
    yield from _family("cache_bytes", "gauge", "Bytes of what is kept.", sizes)


def _memory() -> Iterator[str]:
    resident = psutil.Process().memory_info().rss
    yield from _family("resident_memory_bytes", "gauge", "Memory of the app.", [({}, resident)])


def _family(name: str, kind: str, about: str, samples: Samples) -> Iterator[str]:
    whole = f"bert_probe_{name}"
    yield f"# HELP {whole} {about}"
    yield f"# TYPE {whole} {kind}"
    for labels, value in samples:
        written = ",".join(f'{label}="{given}"' for label, given in labels.items())
        yield f"{whole}{{{written}}} {value:.16g}" if written else f"{whole} {value:.16g}"
