"""What a training is given: data of any type as examples, in two parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from bert_probe.errors import SubjectError, TextError
from bert_probe.model.checkpoint import CLASSIFYING, LABELLING, Checkpoint
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.text.labeled_texts import MAX_LABELS, LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.training.masked_lm import MaskedLmObjective
from bert_probe.training.models import in_its_order
from bert_probe.training.objectives import UNTAUGHT, Objective, TextObjective, TrainingExample
from bert_probe.training.splits import (
    check_taught,
    check_texts,
    in_lines,
    notes_on,
    parted,
    parted_texts,
    text_of,
)
from bert_probe.training.token_objective import TokenObjective

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Texts as a model reads them, with what is right.

    Attributes:
        lesson: how they are taught.
        taught, held_out: examples.
        data, asked: the texts that these are of, as they were given; asked is None where nothing is held out.
        about: number and digest of both, for provenance.
        notes: what a person should know of them.
        files: what their files are called in the lines that teach them again, and what reads them.
    """

    lesson: Objective
    taught: list[TrainingExample]
    held_out: list[TrainingExample]
    data: Any
    asked: Any
    about: Mapping[str, Any]
    notes: tuple[str, ...]
    files: Mapping[str, str]

    def batches(self) -> list[dict[str, torch.Tensor]]:
        """The held-out texts, those of about one length together."""
        groups = self.lesson.groups(self.held_out, BATCH_TOKENS // 2)
        return [self.lesson.batch([self.held_out[place] for place in group]) for group in groups]


@dataclass(frozen=True)
class SplitConfig:
    """How data are cut: the share that is held out, by which seed, and texts after so many tokens."""

    share: float
    seed: int
    longest: int | None


def material(
    checkpoint: Checkpoint, data: Any, held_out: Any, cut: SplitConfig, whole_words: bool
) -> Dataset:
    """Data as examples.

    Raises:
        SubjectError: data of no known type, or of two.
        TextError: texts that cannot be taught.
        UnavailableError: no head for the task.
    """
    known = _type(data)
    if known is None:
        raise SubjectError(
            f"Teach is asked of labelled texts, tagged sentences or lines, and a {type(data).__name__} "
            "was given. They come from read_labeled_texts, read_tagged_sentences and read_sentences."
        )
    if held_out is not None and _type(held_out) is not known:
        raise SubjectError("The held-out data are of another type than the data. Read both alike.")
    if known is LabeledTexts:
        return _of_labelled(checkpoint, data, held_out, cut)
    if known is TaggedSentence:
        return _of_tagged(checkpoint, data, held_out, cut)
    return _of_lines(checkpoint, data, held_out, cut, whole_words)


def _type(data: Any) -> type | None:
    if isinstance(data, LabeledTexts):
        return LabeledTexts
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        return None
    return next((one for one in (TaggedSentence, str) if all(isinstance(part, one) for part in data)), None)


def _of_labelled(
    checkpoint: Checkpoint, data: LabeledTexts, held_out: LabeledTexts | None, cut: SplitConfig
) -> Dataset:
    check_texts(data, held_out)
    taught, asked = parted_texts(data, cut.share, cut.seed)
    if held_out is not None:
        taught, asked = [*data.rows], [*held_out.rows]
    _check_parts(
        taught, asked, 0 if held_out else cut.share, data.rows, text_of, [row.label for row in data.rows]
    )
    lesson = TextObjective(checkpoint, data, in_its_order(checkpoint, CLASSIFYING, data.labels))
    to_teach, to_ask = (lesson.examples(checkpoint, part, cut.longest) for part in (taught, asked))
    return Dataset(
        lesson,
        to_teach,
        to_ask,
        LabeledTexts.of(data.kind, taught),
        LabeledTexts.of(data.kind, asked) if asked else None,
        _about(to_teach, data.digest, to_ask, held_out.digest if held_out else ""),
        (*notes_on(data, taught, asked), *_cut_off(to_teach)),
        _files("read_labeled_texts", "csv", held_out),
    )


def _of_tagged(
    checkpoint: Checkpoint,
    data: Sequence[TaggedSentence],
    held_out: Sequence[TaggedSentence] | None,
    cut: SplitConfig,
) -> Dataset:
    taught, asked = _two(data, held_out, cut, lambda one: one.text)
    labels = sorted({tag for one in data for tag in one.tags})
    if len(labels) < 2:
        raise TextError(f"All words have the label {labels[0]}. Give two labels or more.")
    if len(labels) > MAX_LABELS:
        raise TextError(
            f"The words have {len(labels):,} different labels; at most {MAX_LABELS:,} can be told apart. "
            "Check which column is the last."
        )
    check_taught(labels, sorted({tag for one in asked for tag in one.tags}), "words")
    lesson = TokenObjective(checkpoint, in_its_order(checkpoint, LABELLING, labels))
    to_teach, to_ask = (lesson.examples(checkpoint, part, cut.longest) for part in (taught, asked))
    untaught = [
        example.line
        for example, one in zip(to_teach, taught, strict=True)
        if (example.target != UNTAUGHT).sum() < len(one.words) and not example.inputs.dropped
    ]
    notes = (
        [f"Words that share a piece, or have none, are left out: {in_lines(untaught)}."] if untaught else []
    )
    return Dataset(
        lesson,
        to_teach,
        to_ask,
        tuple(taught),
        tuple(asked) if asked else None,
        _about(to_teach, _digest(map(_plain, data)), to_ask, _digest(map(_plain, held_out or ()))),
        (*notes, *_cut_off(to_teach)),
        _files("read_tagged_sentences", "conllu" if data[0].heads else "conll", held_out),
    )


def _plain(one: TaggedSentence) -> Any:
    return [one.text, one.words, one.tags]


def _of_lines(
    checkpoint: Checkpoint,
    data: Sequence[str],
    held_out: Sequence[str] | None,
    cut: SplitConfig,
    whole_words: bool,
) -> Dataset:
    taught, asked = _two(data, held_out, cut, str)
    lesson = MaskedLmObjective(checkpoint, cut.seed, whole_words)
    to_teach, to_ask = (
        lesson.examples(checkpoint, part, cut.longest) if part else [] for part in (taught, asked)
    )
    notes = []
    if to_ask:
        token, share = lesson.usual(to_teach, to_ask)
        name = checkpoint.tokenizer.convert_ids_to_tokens(token)
        notes.append(f"“{name}”, the most frequent token, would be right in {share:.1%} of all guesses.")
    return Dataset(
        lesson,
        to_teach,
        to_ask,
        tuple(taught),
        tuple(asked) if asked else None,
        _about(to_teach, _digest(map(str, data)), to_ask, _digest(map(str, held_out or ()))),
        (*notes, *_cut_off(to_teach)),
        _files("read_sentences", "txt", held_out),
    )


def _two(
    data: Sequence[T], held_out: Sequence[T] | None, cut: SplitConfig, key: Callable[[T], Hashable]
) -> tuple[list[T], list[T]]:
    """What is taught and what is held out."""
    if held_out is not None:
        return [*data], [*held_out]
    taught, asked = parted(data, cut.share, cut.seed, key)
    _check_parts(taught, asked, cut.share, data, key)
    return taught, asked


def _check_parts(
    taught: Sequence[Any],
    asked: Sequence[Any],
    share: float,
    data: Sequence[T],
    key: Callable[[T], Hashable],
    labels: Sequence[Hashable] = (),
) -> None:
    """Refuse data of which nothing can be held out, with the reason."""
    if taught and (asked or not share):
        return
    count, remedy = len(data), "or hold out another file (--held-out FILE)"
    if count > 1 and len({key(row) for row in data}) == 1:
        raise TextError(
            f"All {count:,} texts are the same one, so none can be held out that is not taught. Give others, "
            f"{remedy}."
        )
    if count > 2 and len(set(labels)) == count:
        raise TextError(
            f"Each of the {count:,} texts has a label of its own, so none can be held out whose label is "
            f"taught. Give each label to two texts or more, {remedy}."
        )
    raise TextError(f"{count:,} texts are too few to hold out a share of {share:g}. Give more, {remedy}.")


def _cut_off(examples: Sequence[TrainingExample]) -> list[str]:
    cut = [example.line for example in examples if example.inputs.dropped]
    many = f"{len(cut):,} texts are" if len(cut) > 1 else "A text is"
    return [f"{many} cut, being longer than the model reads: {in_lines(cut)}."] if cut else []


def _digest(parts: Iterable[Any]) -> str:
    """SHA-256 of a line of JSON for each text; "" for none."""
    written = "".join(f"{json.dumps(part)}\n" for part in parts)
    return hashlib.sha256(written.encode()).hexdigest() if written else ""


def _about(
    taught: Sequence[TrainingExample], digest: str, asked: Sequence[TrainingExample], asked_digest: str
) -> dict[str, Any]:
    """For provenance; the digest is of all data where a share of them is held out."""
    return {
        "sentences": len(taught),
        "sentences_sha256": digest,
        "held_out": len(asked),
        **({"held_out_sha256": asked_digest} if asked_digest else {}),
        "tokens_dropped": sum(one.inputs.dropped for one in taught),
    }


def _files(reader: str, ending: str, held_out: Any) -> dict[str, str]:
    files = {"reader": reader, "data": f"data.{ending}"}
    return files if held_out is None else files | {"held_out": f"held_out.{ending}"}
