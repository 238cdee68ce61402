"""What a training is given: data of any type as examples, in two parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bert_probe.errors import SubjectError, TextError
from bert_probe.model.checkpoint import CLASSIFYING, Checkpoint
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.text.labelled import Labelled, Row
from bert_probe.training.lessons import Example, Lesson, TextLesson
from bert_probe.training.models import in_its_order
from bert_probe.training.parting import check_texts, notes_on, parted_texts


@dataclass(frozen=True, eq=False)
class Material:
    """Texts as a model reads them, with what is right.

    Attributes:
        lesson: how they are taught.
        taught, held_out: examples.
        data, asked: the texts that these are of, as they were given; asked is None where nothing is held out.
        about: number and digest of both, for provenance.
        notes: what a person should know of them.
        files: what their files are called in the lines that teach them again, and what reads them.
    """

    lesson: Lesson
    taught: list[Example]
    held_out: list[Example]
    data: Any
    asked: Any
    about: Mapping[str, Any]
    notes: tuple[str, ...]
    files: Mapping[str, str]

    def batches(self) -> list[dict[str, torch.Tensor]]:
        """The held-out texts, those of about one length together."""
        groups = self.lesson.groups(self.held_out, BATCH_TOKENS // 2)
        return [self.lesson.batch([self.held_out[place] for place in group]) for group in groups]


def material(
    checkpoint: Checkpoint, data: Any, held_out: Any, share: float, seed: int, longest: int | None
) -> Material:
    """Data as examples.

    Raises:
        SubjectError: data of no known type, or of two.
        TextError: texts that cannot be taught.
        UnavailableError: no head for the task.
    """
    if held_out is not None and type(held_out) is not type(data):
        raise SubjectError(
            "The held-out data are of another type than the data. Read both with one function."
        )
    if isinstance(data, Labelled):
        return _of_labelled(checkpoint, data, held_out, share, seed, longest)
    raise SubjectError(
        f"Teach is asked of labelled texts, and a {type(data).__name__} was given. They come from "
        "read_labelled."
    )


def _of_labelled(
    checkpoint: Checkpoint,
    data: Labelled,
    held_out: Labelled | None,
    share: float,
    seed: int,
    longest: int | None,
) -> Material:
    check_texts(data, held_out)
    if held_out is None:
        taught, asked = parted_texts(data, share, seed)
    else:
        taught, asked = list(data.rows), list(held_out.rows)
    _check_parts(taught, asked, share if held_out is None else 0)
    lesson = TextLesson(checkpoint, data, in_its_order(checkpoint, CLASSIFYING, data.labels))
    to_teach, to_ask = (lesson.examples(checkpoint, part, longest) for part in (taught, asked))
    about = _about(len(taught), data.digest, len(asked), held_out.digest if held_out else "", to_teach)
    files = {"reader": "read_labelled", "data": "data.csv"} | (
        {"held_out": "held_out.csv"} if held_out else {}
    )
    return Material(
        lesson,
        to_teach,
        to_ask,
        Labelled.of(data.kind, taught),
        Labelled.of(data.kind, asked) if asked else None,
        about,
        tuple(notes_on(data, taught, asked)),
        files,
    )


def _check_parts(taught: Sequence[Row], asked: Sequence[Row], share: float) -> None:
    if not taught or (share and not asked):
        raise TextError(
            f"{len(taught) + len(asked):,} texts are too few to hold out a share of {share:g}. Give more, or "
            "hold out another file."
        )


def _about(
    count: int, digest: str, asked: int, asked_digest: str, examples: Sequence[Example]
) -> dict[str, Any]:
    """For provenance; the digest is of all data where a share of them is held out."""
    held_out = {"held_out": asked} | ({"held_out_sha256": asked_digest} if asked_digest else {})
    return {
        "sentences": count,
        "sentences_sha256": digest,
        **held_out,
        "tokens_dropped": sum(one.inputs.dropped for one in examples),
    }
