"""Caches shared by all sessions: loaded checkpoints, traces and results, each bounded in memory.

Keys are compared as a whole and not hashed to a digest, so that two texts never share an entry.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from bert_probe.errors import NotFoundError
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.encoding import Encoding
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import Stamp, stamp
from bert_probe.model.trace import Trace
from bert_probe.runtime.batching import DynamicBatcher
from bert_probe.runtime.cache import Cache, ResultCache
from bert_probe.runtime.semaphore import Semaphore

CHECKPOINTS = 3
TRACE_BYTES = 1_000_000_000
ANSWER_BYTES = 200_000_000
MAX_CONCURRENT_PASSES = 2
PASS_TOKENS = 512
"""Maximum number of tokens in a shared forward pass; beyond it, batching saves no time."""

Text = tuple[str, str | None]
"""A text, and its pair or None."""


@dataclass
class OpeningProgress:
    """Progress of loading a checkpoint: bytes done, total bytes, and a sentence about its size."""

    done: int = 0
    total: int = 0
    notice: str = ""


_IN_MEMORY_NAME = re.compile(r"Fine-tuned .* \([0-9a-f]{16}\)", re.DOTALL)
"""Names of models in memory: the original model, and random digits that make the name unguessable."""

_openings: dict[tuple[str, str], OpeningProgress] = {}
_checkpoints: Cache[tuple[str, str], Checkpoint] = Cache(CHECKPOINTS)
_stamps: dict[tuple[str, str], Stamp] = {}
_traces: Cache[tuple[Hashable, ...], Trace] = Cache(TRACE_BYTES, lambda trace: trace.nbytes)
# A model can serve several threads concurrently; the limit bounds their total memory.
passes = Semaphore(MAX_CONCURRENT_PASSES)
"""Slots for forward passes, and for computing results that take no longer than a pass."""

_texts: DynamicBatcher[Encoding, Trace] = DynamicBatcher(passes)
# Tokenizing a text of a million characters takes as much memory as a forward pass.
_encodings = Semaphore(MAX_CONCURRENT_PASSES)

answers = ResultCache(ANSWER_BYTES, passes)
"""Results for all sessions: ``shared_cache.answers.of(Heads(words=True).of, trace)``."""


def caches() -> Mapping[str, Cache[Any, Any]]:
    """Return the caches by name."""
    return {"checkpoints": _checkpoints, "traces": _traces, "answers": answers.cache}


def cached_checkpoint(model: str, revision: str) -> Checkpoint | None:
    """Return a loaded checkpoint, or None if it is not cached or its files have changed since loading."""
    key = (model, revision)
    checkpoint = _checkpoints.get(key)
    if checkpoint is None:
        return None
    current_stamp = stamp(model)
    if current_stamp is not None and current_stamp != _stamps.get(key, current_stamp):
        evict(model)
        return None
    return checkpoint


def loaded_stamp(model: str, revision: str) -> Stamp | None:
    """Return the stamp of a checkpoint's files at loading time; None if they are not in a local folder."""
    return _stamps.get((model, revision))


def is_in_memory(model: str) -> bool:
    """Return whether a name belongs to a model in memory, which has no files."""
    return _IN_MEMORY_NAME.fullmatch(model) is not None


def find_by_weights(weights_sha256: str) -> Checkpoint | None:
    """Return a loaded checkpoint with these weights, or None."""
    return next(
        (
            checkpoint
            for checkpoint in _checkpoints.values()
            if checkpoint.description.weights_sha256 == weights_sha256
        ),
        None,
    )


def register_in_memory(checkpoint: Checkpoint, name: str = "", original: str = "") -> str:
    """Return a name under which pages can open a checkpoint in memory while it is cached.

    Args:
        name: the previous name of the checkpoint; "" to create a new one.
        original: name of the model that was fine-tuned; a new name contains its last part.
    """
    label = PurePath(original).name or "model"
    model_name = name or f"Fine-tuned {label} ({secrets.token_hex(8)})"
    _checkpoints.once((model_name, ""), lambda: checkpoint)
    _drop_stale_traces()
    return model_name


def evict(model: str) -> None:
    """Remove a model whose files have changed, its traces, and all results; it will be loaded again."""
    _checkpoints.drop(lambda key: key[0] == model)
    # Traces are found by name, because a changed tokenizer may leave the description unchanged.
    _traces.drop(lambda key: isinstance(key[0], Description) and key[0].name == model)
    answers.forget()


def opening_progress(model: str, revision: str) -> OpeningProgress:
    """Return the loading progress of a checkpoint."""
    return _openings.get((model, revision), OpeningProgress())


def open_checkpoint(model: str, revision: str, progress: Progress = no_progress) -> Checkpoint:
    """Return a checkpoint that is loaded once for all sessions. Checkpoints can be loaded concurrently.

    Args:
        model: folder, Hub ID or a name from `register_in_memory`; "" is the built-in model.
        revision: branch, tag or commit on the hub, or "".
        progress: called with the bytes read and their total, even if another session started the loading.

    Raises:
        CheckpointError, OutOfMemoryError: see `bert_probe.load`.
    """
    key = (model, revision)
    loaded_here: list[Checkpoint] = []

    def load_model() -> Checkpoint:
        if is_in_memory(model):
            raise NotFoundError(
                "This model was trained here but not saved, and has been removed from memory. Train it again "
                "and save it."
            )
        from bert_probe.model.loading import load  # already imported in the background by `preload`

        state = _openings[key] = OpeningProgress()
        file_stamp = stamp(model)

        def update(done: int, total: int) -> None:
            state.done, state.total = done, total
            progress(done, total)

        def notice(sentence: str) -> None:
            state.notice = sentence

        try:
            checkpoint = load(model or None, revision or None, progress=update, notice=notice)
            if file_stamp is not None:
                _stamps[key] = file_stamp
            loaded_here.append(checkpoint)
            return checkpoint
        finally:
            del _openings[key]

    def report_state() -> None:
        state = opening_progress(*key)
        progress(state.done, state.total)

    cached_checkpoint(*key)  # removes a checkpoint whose files were replaced
    checkpoint = _checkpoints.once(key, load_model, report_state)
    if loaded_here:
        _drop_stale_traces()
    return checkpoint


def _drop_stale_traces() -> None:
    """Remove the traces of models that were evicted, because a trace keeps its model alive."""
    current = {checkpoint.description for checkpoint in _checkpoints.values()}
    _traces.drop(lambda key: key[0] not in current)


def traces(
    checkpoint: Checkpoint, texts: Sequence[Text], truncate: bool, check: Callable[[], None] = lambda: None
) -> list[Trace]:
    """Return traces of texts, each computed once for all sessions; concurrent requests share forward passes.

    Args:
        check: called periodically while waiting; an exception that it raises ends the waiting.

    Raises:
        TextError, OutOfMemoryError: see `Checkpoint.trace`.
    """

    def trace_text(text: Text) -> Trace:
        def make() -> Trace:
            with _encodings.turn(check):
                encoding = checkpoint.encode(*text, truncate=truncate)
            # Texts of a group differ in length by less than a factor of 2, because padding is computed too.
            padded_length = 1 << len(encoding).bit_length()
            group = (checkpoint.description, padded_length)
            return _texts.make(
                encoding, checkpoint.trace_encodings, group, max(1, PASS_TOKENS // padded_length), check
            )

        # The key contains the complete description, because models with equal weights may differ in config
        # or tokenizer.
        return _traces.once((checkpoint.description, text, truncate), make, check)

    return [trace_text(text) for text in texts]
