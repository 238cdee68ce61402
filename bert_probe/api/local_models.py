"""Models, traces and results for a process with a single client, in caches of limited size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.runtime.cache import Cache, ResultCache

MAX_CHECKPOINTS, MAX_TRACE_BYTES, MAX_ANSWER_BYTES = 2, 300_000_000, 100_000_000


class LocalModels:
    """The `ModelServices` for `Body.answer` in a process without server sessions."""

    def __init__(self) -> None:
        self.answers = ResultCache(MAX_ANSWER_BYTES)
        self._checkpoints: Cache[tuple[str, str], Checkpoint] = Cache(MAX_CHECKPOINTS)
        self._traces: Cache[tuple[Hashable, ...], Trace] = Cache(MAX_TRACE_BYTES, lambda trace: trace.nbytes)

    def open_checkpoint(self, model: str, revision: str, progress: Progress) -> Checkpoint:
        """Return a cached checkpoint; "" is the built-in model."""
        return self._checkpoints.once(
            (model, revision), lambda: load(model or None, revision or None, progress=progress)
        )

    def traces(
        self,
        checkpoint: Checkpoint,
        texts: Sequence[tuple[str, str | None]],
        truncate: bool,
        check: Callable[[], None] = lambda: None,
    ) -> list[Trace]:
        """Return the traces of texts, cached."""
        return [
            self._traces.once(
                (checkpoint.description, text, truncate),
                lambda text=text: checkpoint.trace(*text, truncate=truncate),  # type: ignore[misc]
                check,
            )
            for text in texts
        ]
