"""Memory-bounded caches that all sessions share: loaded checkpoints, traces and results.

Keys contain complete texts instead of digests, so different texts never share an entry.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import PurePath
from threading import Condition
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

import cachetools

from bert_probe.errors import NotFoundError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.lengths import check_trace_bytes
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import BUILT_IN, Stamp, stamp
from bert_probe.model.trace import Trace
from bert_probe.runtime import permissions
from bert_probe.runtime.cache import Cache, ResultCache
from bert_probe.runtime.jobs import Semaphore, ThreadPool, await_done

T = TypeVar("T")
V = TypeVar("V")

LINGER: Final = 1.0
"""Maximum time that a batch waits for callers of the previous batch, relative to that batch's duration."""
GAP: Final = 0.3
"""Maximum time that a batch waits for the next caller, relative to the duration of the previous batch."""
_MAX_GROUPS: Final = 64


@dataclass(eq=False)
class _Batch(Generic[T, V]):
    """A batch: its items, and a future for their results (None if the batch failed or did not run)."""

    items: list[T] = field(default_factory=list)
    future: Future[Sequence[V] | None] = field(default_factory=Future)


@dataclass(eq=False)
class _Queue(Generic[T, V]):
    """The open batch of a group of items (see `DynamicBatcher`), and statistics of the group's last batch.

    Attributes:
        turn: semaphore that allows one batch at a time.
        gathering: the open batch, which accepts items; None if there is none.
        expected_callers: number of callers of the last batch, plus callers that arrived while it ran.
        end, duration: time at which the last batch ended (monotonic clock), and its duration.
    """

    turn: Semaphore = field(default_factory=lambda: Semaphore(1))
    gathering: _Batch[T, V] | None = None
    expected_callers: int = 0
    end: float = 0.0
    duration: float = 0.0


class DynamicBatcher(Generic[T, V]):
    """Collects items for the next batch while the previous batch runs (dynamic batching).

    A group consists of the items that may share a batch, such as texts of similar length for the same model.
    Callers often send their next request soon after they receive a result. The next batch waits briefly for
    these requests; otherwise the callers would split into two groups that alternate.

    Args:
        slots: limit on concurrent batches; a running batch holds one slot. A group runs one batch at a time.
    """

    def __init__(self, slots: Semaphore) -> None:
        self._slots = slots
        # Batches run in pooled threads, because reusing a warm thread saves a quarter of the run time.
        self._threads = ThreadPool("batch")
        self._groups: cachetools.LRUCache[Hashable, _Queue[T, V]] = cachetools.LRUCache(_MAX_GROUPS)
        self._joined = Condition()

    def make(
        self,
        item: T,
        make: Callable[[Sequence[T]], Sequence[V]],
        group: Hashable,
        max_size: int,
        check: Callable[[], None],
    ) -> V:
        """Return the result for an item, which may be processed in a batch with other items of its group.

        Args:
            item: the item to process.
            make: processes several items of a group and returns their results in order.
            group: key of the group; items of the same group may share a batch.
            max_size: maximum number of items in a batch.
            check: called periodically while waiting; an exception from this callback ends the wait.

        Raises:
            Exception: any exception that ``make`` raises for this item. Errors of other items have no effect.
        """
        if max_size > 1:
            with self._joined:
                queue = self._groups.setdefault(group, _Queue())
                batch, index = self._join(queue, item, max_size)
            if index == 0:
                self._lead(batch, make, queue, max_size, check)
            else:
                with self._slots.counted():
                    await_done(batch.future, check)
            results = batch.future.result()
            if results is not None:
                return results[index]
        with self._slots.turn(check):
            return make([item])[0]

    def _join(self, queue: _Queue[T, V], item: T, max_size: int) -> tuple[_Batch[T, V], int]:
        """Add an item to the open batch, and return the batch and the index of the item.

        The caller of item 0 runs the batch.
        """
        batch = queue.gathering = queue.gathering or _Batch()
        batch.items.append(item)
        if len(batch.items) == max_size:
            queue.gathering = None
        self._joined.notify_all()
        return batch, len(batch.items) - 1

    def _lead(
        self,
        batch: _Batch[T, V],
        make: Callable[[Sequence[T]], Sequence[V]],
        queue: _Queue[T, V],
        max_size: int,
        check: Callable[[], None],
    ) -> None:
        """Run a batch and set its future; called by the thread that added the first item."""
        results: Sequence[V] | None = None
        try:
            with ExitStack() as stack:
                with self._slots.counted():
                    stack.enter_context(queue.turn.turn(check))
                    self._await(batch, queue, max_size)
                stack.enter_context(self._slots.turn(check))
                self._close(batch, queue)
                start = time.monotonic()
                results = self._threads.call(lambda: make(batch.items))
                end = time.monotonic()
                with self._joined:
                    arrived = len(queue.gathering.items) if queue.gathering else 0
                    queue.expected_callers = len(batch.items) + arrived
                    queue.end, queue.duration = end, end - start
        except Exception:
            # It is unknown which item failed, so each caller that is not cancelled retries its own item.
            if len(batch.items) == 1:
                raise
            check()
        finally:
            self._close(batch, queue)
            batch.future.set_result(results)

    def _await(self, batch: _Batch[T, V], queue: _Queue[T, V], max_size: int) -> None:
        """Wait until the callers of the last batch have added items, within the limits `LINGER` and `GAP`."""
        with self._joined:
            deadline, gap = queue.end + LINGER * queue.duration, GAP * queue.duration
            while (count := len(batch.items)) < min(queue.expected_callers, max_size):
                timeout = min(gap, deadline - time.monotonic())
                if not self._joined.wait_for(lambda: len(batch.items) > count, timeout):
                    break

    def _close(self, batch: _Batch[T, V], queue: _Queue[T, V]) -> None:
        """Close the batch, so that it accepts no more items."""
        with self._joined:
            if queue.gathering is batch:
                queue.gathering = None


CHECKPOINTS = 3
"""Maximum number of cached checkpoints."""
TRACE_BYTES = 1_000_000_000
ANSWER_BYTES = 200_000_000
"""Maximum total size of the cached results in bytes; `TRACE_BYTES` is the default limit for traces."""
MAX_CONCURRENT_PASSES = 2
PASS_TOKENS = 512
"""Maximum number of tokens in a shared forward pass; with more tokens, batching does not save time."""

Text = tuple[str, str | None]
"""A text, and its pair or None."""


@dataclass
class OpeningProgress:
    """Progress of loading a checkpoint: bytes done, total bytes, and a sentence about the size and memory."""

    done: int = 0
    total: int = 0
    notice: str = ""


_IN_MEMORY_NAME = re.compile(r"Fine-tuned .* \([0-9a-f]{16}\)", re.DOTALL)
"""Matches names of models in memory: original model, and random digits that other users cannot guess."""

_Key = tuple[str, str, str]
"""Name, revision and dtype of a checkpoint."""

_openings: dict[_Key, OpeningProgress] = {}
_checkpoints: Cache[_Key, Checkpoint] = Cache(CHECKPOINTS)
_referenced: WeakValueDictionary[_Key, Checkpoint] = WeakValueDictionary()
"""Checkpoints in memory, including those that were evicted but are still used by an open page or a job."""
_traces: Cache[tuple[Hashable, ...], Trace] = Cache(TRACE_BYTES, lambda trace: trace.nbytes)
passes = Semaphore(MAX_CONCURRENT_PASSES)
"""Semaphore that limits concurrent forward passes, and computations without progress reports, for memory."""

_texts: DynamicBatcher[Encoding, Trace] = DynamicBatcher(passes)
# Limit tokenization too: for a text of a million characters, it takes as much memory as a forward pass.
_encodings = Semaphore(MAX_CONCURRENT_PASSES)

answers = ResultCache(ANSWER_BYTES, passes)
"""Results shared by all sessions. Usage: ``shared_cache.answers.of(Heads(words=True).of, trace)``."""


def checked_answer(question: Any, *inputs: Any) -> Any:
    """Return the answer to a question, computed or from `answers`, within the limits of a public server.

    Raises:
        UnavailableError: the server is public, and the question needs too much memory or time; see
            `Question.check_limits`.
        ProbeError: the question cannot be answered.
    """
    if permissions.current().is_public:
        question.check_limits(*inputs)
    return answers.of(question.of, *inputs)


def limit_traces(max_bytes: int) -> None:
    """Set the capacity of the cache of traces, in bytes. Call this before the server starts."""
    _traces.resize(max_bytes)


def caches() -> Mapping[str, Cache[Any, Any]]:
    """Return the caches of checkpoints, traces and results, by name."""
    return {"checkpoints": _checkpoints, "traces": _traces, "answers": answers.cache}


def cached_checkpoint(model: str, revision: str, dtype: str = "float32") -> Checkpoint | None:
    """Return a checkpoint in memory; None if there is none, or its files have changed since loading."""
    key = _key(model, revision, dtype)
    cached = _checkpoints.get(key)
    checkpoint = _referenced.get(key) if cached is None else cached
    if checkpoint is None:
        return None
    current_stamp = stamp(model)
    if current_stamp is not None and current_stamp != checkpoint.files:
        evict(model)
        return None
    if cached is None:
        _store(key, checkpoint)
    return checkpoint


def _store(key: _Key, checkpoint: Checkpoint) -> None:
    """Store a checkpoint in the cache, which may evict another one with its traces."""
    _referenced[key] = _checkpoints.once(key, lambda: checkpoint)
    _drop_stale_traces()


def _key(model: str, revision: str, dtype: str) -> _Key:
    """Return the cache key of a checkpoint, which is the same for all forms of a name that open one model.

    A model that exists only in memory has a fixed dtype.
    """
    return (_model_key(model), revision.strip(), "" if is_in_memory(model) else dtype)


def _model_key(model: str) -> str:
    name = model.strip()
    return "" if name == BUILT_IN else name


def loaded_stamp(model: str, revision: str, dtype: str = "float32") -> Stamp | None:
    """Return the file stamp that a checkpoint had when it was loaded; None if it is not in a local folder."""
    checkpoint = _checkpoints.get(_key(model, revision, dtype))
    return None if checkpoint is None else checkpoint.files


def is_in_memory(model: str) -> bool:
    """Return whether a name refers to a model that exists only in memory."""
    return _IN_MEMORY_NAME.fullmatch(model) is not None


def find_by_weights(weights_sha256: str) -> Checkpoint | None:
    """Return a cached checkpoint with a weights digest, preferably in float32; None if there is none.

    Args:
        weights_sha256: SHA-256 digest of the checkpoint's weights.
    """
    matching = [
        checkpoint
        for checkpoint in _checkpoints.values()
        if checkpoint.description.weights_sha256 == weights_sha256
    ]
    return min(matching, key=lambda checkpoint: checkpoint.description.dtype != "float32", default=None)


def register_in_memory(checkpoint: Checkpoint, name: str = "", original: str = "") -> str:
    """Cache a checkpoint that exists only in memory; return the name under which pages can open it.

    Args:
        checkpoint: the checkpoint to cache.
        name: the previous name of the checkpoint; "" to create a name.
        original: path or Hub ID of the model that was fine-tuned; a new name contains its last component.
    """
    label = PurePath(original).name or "model"
    model_name = name or f"Fine-tuned {label} ({secrets.token_hex(8)})"
    _store(_key(model_name, "", ""), checkpoint)
    return model_name


def evict(model: str) -> None:
    """Remove a model whose files have changed, and its traces, from the caches."""
    name = _model_key(model)
    for reference in _referenced.valuerefs():
        if reference.key[0] == name:
            _referenced.pop(reference.key, None)
    _checkpoints.drop(lambda key: key[0] == name)
    _drop_stale_traces()


def opening_progress(model: str, revision: str, dtype: str = "float32") -> OpeningProgress:
    """Return the loading progress of a checkpoint."""
    return _openings.get(_key(model, revision, dtype), OpeningProgress())


def open_checkpoint(
    model: str, revision: str, progress: Progress = no_progress, dtype: str = "float32"
) -> Checkpoint:
    """Return a checkpoint; load it once for all sessions if it is not cached.

    Args:
        model: folder, Hub ID or a name from `register_in_memory`; "" is the built-in model.
        revision: branch, tag or commit on the hub, or "".
        progress: called with the bytes read and the total, even if another session has started the loading.
        dtype: data type of the weights and the computation; see `bert_probe.load`.

    Raises:
        CheckpointError, OutOfMemoryError: see `bert_probe.load`, and `Permissions.check_model`.
    """
    if not is_in_memory(model):
        permissions.current().check_model(model, revision)
    key = _key(model, revision, dtype)
    loaded_here: list[Checkpoint] = []

    def load_model() -> Checkpoint:
        if is_in_memory(model):
            raise NotFoundError(
                "This model was trained in this app but not saved, and has been removed from memory. "
                "Train the model again, and save it."
            )
        from bert_probe.model.loading import load  # fast, because `preload` has already imported it

        state = _openings[key] = OpeningProgress()

        def update(done: int, total: int) -> None:
            state.done, state.total = done, total
            progress(done, total)

        def notice(sentence: str) -> None:
            state.notice = sentence

        try:
            checkpoint = load(model or None, revision or None, dtype=dtype, progress=update, notice=notice)
            loaded_here.append(checkpoint)
            return checkpoint
        finally:
            del _openings[key]

    def report_state() -> None:
        state = opening_progress(*key)
        progress(state.done, state.total)

    cached_checkpoint(*key)  # evict the checkpoint if its files have changed
    checkpoint = _checkpoints.once(key, load_model, report_state)
    if loaded_here:
        _referenced[key] = checkpoint
        _drop_stale_traces()
    return checkpoint


def _drop_stale_traces() -> None:
    """Remove the traces of evicted models, because a trace keeps its model in memory."""
    current = {checkpoint.cache_key for checkpoint in _checkpoints.values()}
    _traces.drop(lambda key: key[0] not in current)


def estimated_bytes(checkpoint: Checkpoint, texts: Sequence[Text], truncate: bool) -> int:
    """Estimate the size of the traces of texts in bytes: hidden states, queries, keys and values.

    Raises:
        TextError: see `Checkpoint.encode`.
    """
    tokens = 0
    for text in texts:
        with _encodings.turn(lambda: None):
            tokens += len(checkpoint.encode(*text, truncate=truncate))
    return checkpoint.description.trace_bytes(tokens)


def drop_traces() -> None:
    """Remove all traces from the cache. Pages and requests that use a trace keep it in memory."""
    _traces.drop(lambda _: True)


def traces(
    checkpoint: Checkpoint, texts: Sequence[Text], truncate: bool, check: Callable[[], None] = lambda: None
) -> list[Trace]:
    """Return traces of texts, each computed once for all sessions; concurrent requests share forward passes.

    Args:
        checkpoint: the model.
        texts: (text, second text or None) pairs.
        truncate: whether to truncate texts to the model's maximum length.
        check: called periodically while waiting; an exception from this callback ends the wait.

    Raises:
        TextError, OutOfMemoryError: see `Checkpoint.trace` and `lengths.check_trace_bytes`.
    """

    def trace_text(text: Text) -> Trace:
        def make() -> Trace:
            with _encodings.turn(check):
                encoding = checkpoint.encode(*text, truncate=truncate)
            # Lengths within a group differ by less than a factor of 2, because padding costs time.
            padded_length = 1 << len(encoding).bit_length()
            group = (checkpoint.cache_key, padded_length)
            return _texts.make(
                encoding, checkpoint.trace_encodings, group, max(1, PASS_TOKENS // padded_length), check
            )

        return _traces.once((checkpoint.cache_key, text, truncate), make, check)

    computed: list[Trace] = []
    sizes: list[int] = []
    for text in texts:
        computed.append(trace_text(text))
        sizes.append(computed[-1].nbytes)
        check_trace_bytes(sizes)
    return computed
