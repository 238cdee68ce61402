"""Metrics for Prometheus: queues, caches, memory, and requests by analysis."""

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
"""Labels and value of each sample."""


class RequestMetrics:
    """Counts and durations of the API's responses."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def record(self, analysis: str, status: int, seconds: float) -> None:
        """Count one response."""
        with self._lock:
            self._counts[analysis, status] += 1
            self._seconds[analysis] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """Yield the metrics in the Prometheus text format."""
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        responses = [({"analysis": name, "status": str(code)}, n) for (name, code), n in counts.items()]
        yield from _family("api_requests_total", "counter", "Responses of the HTTP API.", responses)
        durations = [({"analysis": name}, duration) for name, duration in seconds.items()]
        yield from _family("api_request_seconds_total", "counter", "Seconds for these responses.", durations)


def render(requests: RequestMetrics) -> str:
    """Return all metrics in the Prometheus text format."""
    return "\n".join([*_queues(), *_caches(), *_memory(), *requests.lines(), ""])


def _queues() -> Iterator[str]:
    queues = {"passes": shared_cache.passes, "long": SLOTS}
    started = [({"queue": name}, queue.taken) for name, queue in queues.items()]
    yield from _family("queue_started_total", "counter", "Jobs that have started.", started)
    waited = [({"queue": name}, queue.waited) for name, queue in queues.items()]
    yield from _family("queue_waited_seconds_total", "counter", "Seconds that jobs have waited.", waited)
    waiting = [({"queue": name}, queue.waiting) for name, queue in queues.items()]
    yield from _family("queue_waiting", "gauge", "Jobs that are waiting now.", waiting)


def _caches() -> Iterator[str]:
    caches = shared_cache.caches()
    lookups = [({"cache": name}, cache.asked) for name, cache in caches.items()]
    yield from _family("cache_lookups_total", "counter", "Cache lookups.", lookups)
    misses = [({"cache": name}, cache.made) for name, cache in caches.items()]
    yield from _family("cache_misses_total", "counter", "Cache misses.", misses)
    contents = {name: cache.held for name, cache in caches.items()}
    entries = [({"cache": name}, count) for name, (count, _) in contents.items()]
    yield from _family("cache_entries", "gauge", "Cache entries; checkpoints are open models.", entries)
    sizes = [({"cache": name}, size) for name, (_, size) in contents.items() if name != "checkpoints"]
    yield from _family("cache_bytes", "gauge", "Size of the cache entries in bytes.", sizes)


def _memory() -> Iterator[str]:
    resident = psutil.Process().memory_info().rss
    yield from _family(
        "resident_memory_bytes", "gauge", "Resident memory of the app in bytes.", [({}, resident)]
    )


def _family(name: str, kind: str, description: str, samples: Samples) -> Iterator[str]:
    metric = f"bert_probe_{name}"
    yield f"# HELP {metric} {description}"
    yield f"# TYPE {metric} {kind}"
    for labels, value in samples:
        pairs = ",".join(f'{label}="{label_value}"' for label, label_value in labels.items())
        yield f"{metric}{{{pairs}}} {value:.16g}" if pairs else f"{metric} {value:.16g}"
