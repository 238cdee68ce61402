"""The tuned lens: a map a layer, learned from the reader's lines, that puts it into the last one's terms."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.numpy import save as to_bytes

from bert_probe.analyses.outputs.fill_mask import mask_of
from bert_probe.analyses.outputs.lens_training import (
    BATCH,
    WordHead,
    inputs_of,
    losses,
    read,
    readings,
    trained,
)
from bert_probe.core import files, writing
from bert_probe.core.field_types import Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import FILLING, Checkpoint
from bert_probe.model.layers import passing
from bert_probe.model.outputs import output_of
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import numbered

ENDING = ".safetensors"
"""Of a file that holds a lens."""
RECORD = "bert_probe"
"""Key of the lens's provenance among the metadata of its file."""


@question("tuned lens", command="tune-lens")
class TuneLens(Question):
    """Train a tuned lens for masked words; Belrose et al. 2023.

    Layer l's vector h becomes h + A h + b before the model's own head reads it. A and b begin as 0, so that
    the lens begins as the plain one, and learn to lower the Kullback-Leibler divergence of what the head then
    gives from what it gives for the last layer, which stays as it is. The paper learns at all tokens, since
    its models foretell a word at each of them; a model with a head for masked words does so at masks alone,
    so masks are where this learns, and what it is for.

    Attributes:
        steps: of training.
        seed: of the masks, the order of the steps, and which lines are held out.
        held_out: share of the lines that nothing is learned from, by which the lens is judged.
    """

    inputs = SentenceList()

    steps: int = param(Number(1, 100_000), default=200, about="Training steps.  [default: 200]")
    seed: int = param(
        Number(0), default=0, about="Seed of the masks and of the held-out lines.  [default: 0]"
    )
    held_out: float = param(
        Number(0, 1, whole=False),
        default=0.2,
        about="Share of lines held out for evaluation.  [default: 0.2]",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.held_out < 1:
            raise SelectionError(f"held_out is {self.held_out:g}; it lies between 0 and 1. Give 0.2.")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> TuneLensResult:
        """Train it on lines, and judge it by those held out.

        Args:
            sentences: one an entry; blank ones do not count, and equal ones count once.
            truncate: cut lines that are too long instead of refusing them.
            report: told how much is done, and of how much.

        Raises:
            UnavailableError: no head for masked words, a tokenizer without masks, an architecture that does
                not show its layers, numbers that are not finite.
            EmptyTextError, TextError: fewer than two lines, or some that cannot be read, all of them named.
            OutOfMemoryError: the machine is too small for so many lines.
        """
        checkpoint = checkpoint.now()
        output = output_of(checkpoint, FILLING)
        mask_of(checkpoint)
        lines = numbered(sentences, "line")
        report(0, 0)
        inputs = inputs_of(checkpoint, lines, truncate)
        # Equal lines once, lest one be held out and learned from.
        texts = [*dict(zip((line for _, line in lines), inputs, strict=True)).values()]
        if len(texts) < 2:
            raise TextError("There is one line; a lens learns from some and is judged by others. Give more.")
        held = _held_out(len(texts), self.held_out, self.seed)
        given = readings(checkpoint, texts, self.seed)
        held_places = sum(len(own) for own, line in zip(given.places, given.lines, strict=True) if held[line])
        tick = _StepReporter(report, len(given.groups) + self.steps + math.ceil(held_places / BATCH))
        known = read(checkpoint, given, tick)
        apart = held[known.lines]
        learned, kept = known.of(~apart), known.of(apart)
        if not len(learned) or not len(kept):
            raise TextError("Too few of these lines have words that can be masked. Give more lines.")
        with checkpoint.running():
            with torch.no_grad():
                head = WordHead(output, passing(checkpoint.trace(lines[0][1], truncate=True)))
            with torch.enable_grad():
                weights, biases = trained(head, learned, self.steps, self.seed, tick)
            plain, tuned = losses(head, kept, weights, biases, tick)
        dropped = sum(text.dropped for text in texts)
        subject = InputRecord.of_sentences(checkpoint, [text for _, text in lines], dropped)
        maps, told = (read_only(weights), read_only(biases)), (read_only(plain), read_only(tuned))
        return TuneLensResult(self, subject, *maps, *told, len(learned), len(kept))


def _held_out(count: int, share: float, seed: int) -> Array:
    """Which lines nothing is learned from, bool [line]: one at least, and not all."""
    number = min(count - 1, max(1, round(share * count)))
    held: Array = np.random.default_rng(seed).permutation(count) < number
    return held


class _StepReporter:
    """Counts parts of work, and reports."""

    def __init__(self, report: Progress, total: int) -> None:
        self._report, self._total, self._done = report, total, 0
        report(0, total)

    def __call__(self) -> None:
        self._done += 1
        self._report(self._done, self._total)


@dataclass(frozen=True, eq=False, repr=False)
class TuneLensResult(Result):
    """A lens, and how well it does on lines that it has not learned from.

    Attributes:
        weights, biases: A and b of every layer but the last, from that of the embeddings on,
            [layer, hidden, hidden] and [layer, hidden].
        logit_lens, tuned: the divergence of the layer output from the model's answer, mean over the
            masked words held out, by the plain lens and by this one, in bits, float64 [layer].
        learned, kept: masked words that it has learned from, and by which it is judged.
    """

    question: TuneLens
    weights: Array
    biases: Array
    logit_lens: Array
    tuned: Array
    learned: int
    kept: int

    def __post_init__(self) -> None:
        layers, size = self.biases.shape
        fits = self.weights.shape == (layers, size, size)
        if not fits or not self.logit_lens.shape == self.tuned.shape == (layers,):
            raise ShapeError(
                f"maps {self.weights.shape} and {self.biases.shape}, losses {self.logit_lens.shape} and "
                f"{self.tuned.shape} do not fit together."
            )

    @property
    def worse(self) -> tuple[int, ...]:
        """Layers at which it is no nearer to the model's answer than the plain lens."""
        return tuple(np.flatnonzero(~(self.tuned < self.logit_lens)).tolist())

    @property
    def verdict(self) -> str:
        """Whether it is nearer to the model's answer than the plain lens, in a sentence that names layers."""
        words = f"{self.kept:,} masked words held out"
        if not self.worse:
            return f"On {words} it is nearer to the model's answer than the plain lens at every inner layer."
        layers = ", ".join(map(str, self.worse))
        where = f"layer {layers}" if len(self.worse) == 1 else f"layers {layers}"
        return f"On {words} it is no nearer to the model's answer than the plain lens at {where}."

    @property
    def digest(self) -> str:
        """SHA-256 of the maps."""
        return hashlib.sha256(self.weights.tobytes() + self.biases.tobytes()).hexdigest()

    def on(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """A layer's vectors [..., hidden] in the last layer's terms."""
        weight, bias = (
            torch.tensor(part[layer], device=states.device) for part in (self.weights, self.biases)
        )
        kind = torch.promote_types(states.dtype, weight.dtype)
        wide = states.to(kind)
        return (wide + F.linear(wide, weight.to(kind), bias.to(kind))).to(states.dtype)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The losses, and of how many masked words."""
        return {
            "plain_loss_bits": self.logit_lens.tolist(),
            "tuned_loss_bits": self.tuned.tolist(),
            "masked_words": {"learned_from": self.learned, "held_out": self.kept},
        }

    def frame(self) -> pd.DataFrame:
        """A row for each layer but the last: layer, plain_loss_bits, tuned_loss_bits, on held-out lines."""
        layers = np.arange(len(self.logit_lens))
        return pd.DataFrame(
            {"layer": layers, "plain_loss_bits": self.logit_lens, "tuned_loss_bits": self.tuned}
        )

    def save(self, path: str | Path, csv_safe: bool = False, overwrite: bool = True) -> list[Path]:
        """Write the lens itself where the ending is .safetensors, else the table; see `Result.save`.

        The file holds all that there is to know of the lens; a .json beside it says the same to people.
        """
        path = Path(path)
        if path.suffix.lower() != ENDING:
            return super().save(path, csv_safe, overwrite)
        places = files.described(path)
        record = self.provenance
        arrays = {"weights": self.weights, "biases": self.biases}
        # Half a surrogate pair, as in a folder's undecodable name, is escaped.
        for_people = json.dumps(record, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")
        contents = to_bytes(arrays, {RECORD: json.dumps(record)}), for_people
        writing.write(dict(zip(places, contents, strict=True)), overwrite)
        return places
