"""What sessions share: opened checkpoints, traces and what is made of them, each bounded in memory.

Keys are tuples of every cause of a result, compared as a whole, so two texts cannot meet in one entry.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
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
PASSES_AT_ONCE = 2
PASS_TOKENS = 512
"""Of texts that several asked for in one pass: beyond that, one more costs what it costs alone."""

Text = tuple[str, str | None]
"""A text, and its pair or None."""


@dataclass
class OpeningProgress:
    """How far the opening of a checkpoint is: bytes done and in all, and a sentence on its size."""

    done: int = 0
    total: int = 0
    notice: str = ""


_LENT = "trained:"
"""Begins the names of models that are in memory only; nobody can guess what follows."""

_openings: dict[tuple[str, str], OpeningProgress] = {}
_checkpoints: Cache[tuple[str, str], Checkpoint] = Cache(CHECKPOINTS)
_stamps: dict[tuple[str, str], Stamp] = {}
_traces: Cache[tuple[Hashable, ...], Trace] = Cache(TRACE_BYTES, lambda trace: trace.nbytes)
# A model answers several threads at once; what has to be bounded is the memory that they need together.
passes = Semaphore(PASSES_AT_ONCE)
"""For a pass, or an answer that takes no longer."""

_texts: DynamicBatcher[Encoding, Trace] = DynamicBatcher(passes)
# A text of a million characters takes as much memory while it is cut into tokens as in a pass.
_encodings = Semaphore(PASSES_AT_ONCE)

answers = ResultCache(ANSWER_BYTES, passes)
"""Answers to questions, for all sessions: ``store.answers.of(Heads(words=True).of, trace)``."""


def caches() -> Mapping[str, Cache[Any, Any]]:
    """What is kept, by a name for it."""
    return {"checkpoints": _checkpoints, "traces": _traces, "answers": answers.cache}


def opened(model: str, revision: str) -> Checkpoint | None:
    """A checkpoint that is open already, or None; also None where other files lie in its folder by now."""
    key = (model, revision)
    found = _checkpoints.get(key)
    if found is None:
        return None
    there = stamp(model)
    if there is not None and there != _stamps.get(key, there):
        forget(model)
        return None
    return found


def opened_from(model: str, revision: str) -> Stamp | None:
    """Which files a checkpoint was opened from; None where that is no folder."""
    return _stamps.get((model, revision))


def is_lent(model: str) -> bool:
    """Return whether a name is of a model that is in memory only, so that it opens no file."""
    return model.startswith(_LENT)


def with_weights(weights_sha256: str) -> Checkpoint | None:
    """Return an open checkpoint with these weights, or None."""
    return next(
        (
            checkpoint
            for checkpoint in _checkpoints.values()
            if checkpoint.description.weights_sha256 == weights_sha256
        ),
        None,
    )


def lend(checkpoint: Checkpoint, name: str = "") -> str:
    """A name by which the pages open a checkpoint that is in memory only, for as long as it is kept.

    Args:
        name: that it was lent by before; "" for none.
    """
    given = name or f"{_LENT}{secrets.token_hex(8)}"
    _checkpoints.once((given, ""), lambda: checkpoint)
    _let_go()
    return given


def forget(model: str) -> None:
    """Open a model anew when it is asked for again: what is at its place has changed."""
    _checkpoints.drop(lambda key: key[0] == model)
    # Of a changed tokenizer the description need not tell.
    _traces.drop(lambda key: isinstance(key[0], Description) and key[0].name == model)
    answers.forget()


def opening(model: str, revision: str) -> OpeningProgress:
    """How far the opening of a checkpoint is."""
    return _openings.get((model, revision), OpeningProgress())


def open_checkpoint(model: str, revision: str, report: Progress = no_progress) -> Checkpoint:
    """A checkpoint, opened once for all sessions; "" is the built-in. Opening one does not hold up another.

    Args:
        report: told of the bytes read, also where somebody else began the opening.

    Raises:
        CheckpointError, OutOfMemoryError: see `bert_probe.load`.
    """
    key = (model, revision)
    mine: list[Checkpoint] = []

    def made() -> Checkpoint:
        if is_lent(model):
            raise NotFoundError(
                "This model was trained here, never saved, and is kept no longer. Train it again and save it."
            )
        from bert_probe.model.loading import load  # imported by `ready` meanwhile

        now = _openings[key] = OpeningProgress()
        there = stamp(model)

        def progress(done: int, total: int) -> None:
            now.done, now.total = done, total
            report(done, total)

        def notice(sentence: str) -> None:
            now.notice = sentence

        try:
            made_of = load(model or None, revision or None, progress=progress, notice=notice)
            if there is not None:
                _stamps[key] = there
            mine.append(made_of)
            return made_of
        finally:
            del _openings[key]

    def waiting() -> None:
        now = opening(*key)
        report(now.done, now.total)

    opened(*key)  # which lets go of one whose files were replaced
    found = _checkpoints.once(key, made, waiting)
    if mine:
        _let_go()
    return found


def _let_go() -> None:
    """A trace holds its model: those of models that had to go for another go too."""
    held = {checkpoint.description for checkpoint in _checkpoints.values()}
    _traces.drop(lambda key: key[0] not in held)


def traces(
    checkpoint: Checkpoint, texts: Sequence[Text], truncate: bool, check: Callable[[], None] = lambda: None
) -> list[Trace]:
    """Traces of texts, each made once for all sessions; those of several that wait are made in one pass.

    Args:
        check: called now and then by one who waits for a turn; what it raises ends the waiting.

    Raises:
        TextError, OutOfMemoryError: see `Checkpoint.trace`.
    """

    def traced(text: Text) -> Trace:
        def make() -> Trace:
            with _encodings.turn(check):
                encoding = checkpoint.encode(*text, truncate=truncate)
            # Less than twice as long as any other: what fills up the shorter ones is computed too.
            longest = 1 << len(encoding).bit_length()
            group = (checkpoint.description, longest)
            return _texts.make(
                encoding, checkpoint.trace_encodings, group, max(1, PASS_TOKENS // longest), check
            )

        # All of the description: the same weights under another config or tokenizer give other numbers.
        return _traces.once((checkpoint.description, text, truncate), make, check)

    return [traced(text) for text in texts]
