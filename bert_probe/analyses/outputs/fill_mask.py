"""Which word stands at a mask: the answer of a head that was trained to fill masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, softmax
from bert_probe.core import frames
from bert_probe.core.field_types import Number, Optional
from bert_probe.core.field_types_of_words import WordList, WordSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.errors import SelectionError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import FILLING, Checkpoint
from bert_probe.model.encoding import Token, panics_as_errors
from bert_probe.model.outputs import output_of
from bert_probe.model.trace import Array, Trace, read_only


@question(FILLING, command="predict")
class FillMask(Prediction):
    """The words that a model would put in place of each mask, likeliest first.

    Attributes:
        top: how many at each mask.
        targets: these only, and no others. One that the vocabulary does not hold as a whole is stood for by
            its first piece, as in transformers' pipeline, and the answer says so.
        mask: a token; its word is masked, beside the masks that the text has.
    """

    inputs = OneTrace()

    task: ClassVar[str] = FILLING

    top: int = param(Number(1), default=5, about="How many, likeliest first.  [default: 5; of classes, all]")
    targets: tuple[str, ...] = param(WordList(), default=(), about="Only these words at a mask.")
    mask: int | str | None = param(
        Optional(WordSelector()), default=None, about="Mask this word of the text, in place of a mask in it."
    )

    def of(self, trace: Trace) -> FillMaskResult:
        """The answer for a text.

        Raises:
            UnavailableError: the checkpoint has no such head, or its tokenizer no mask.
            TextError: there is no mask in the text.
            SelectionError: a word that is not in the text, a target that is no token at all.
        """
        checkpoint = trace.checkpoint
        output, mask = output_of(checkpoint, FILLING), mask_of(checkpoint)
        asked_for = self.resolved(trace)
        read = trace if asked_for.mask is None else checkpoint.trace(*masked(trace, int(asked_for.mask)))
        places = tuple(token for token in read.tokens if token.id == checkpoint.tokenizer.mask_token_id)
        if not places:
            raise TextError(
                f"There is no {mask} in the text. Write {mask} where a word is to be found, or "
                "name a word that is to be masked."
            )
        targets = tuple(target(checkpoint, word) for word in self.targets)
        logits = output.logits(read, [token.position for token in places])
        shares = softmax(logits)
        best = np.argsort(-logits, axis=-1, kind="stable")
        if targets:
            wanted = {token for token, _ in targets}
            best = np.stack([[token for token in row if token in wanted] for row in best])
        ids = best[:, : self.top]
        chosen = np.take_along_axis(logits, ids, axis=-1)
        return FillMaskResult(
            asked_for,
            InputRecord.of(trace),
            trace,
            read,
            places,
            read_only(ids),
            tuple(checkpoint.tokenizer.convert_ids_to_tokens(row) for row in ids.tolist()),
            read_only(chosen),
            read_only(np.take_along_axis(shares, ids, axis=-1)),
            read_only((logits[:, None, :] > chosen[..., None]).sum(axis=-1) + 1),
            tuple(
                f"“{word}” is no token here; {piece}, its first piece, stands for it."
                for word, (_, piece) in zip(self.targets, targets, strict=True)
                if piece != word
            ),
        )


def mask_of(checkpoint: Checkpoint) -> str:
    """What a mask is written as.

    Raises:
        UnavailableError: the tokenizer has none.
    """
    mask = checkpoint.tokenizer.mask_token
    if mask is None:
        raise UnavailableError(
            f"The tokenizer of {checkpoint.description.name} has no mask, so none is filled."
        )
    return str(mask)


def masked(trace: Trace, position: int) -> tuple[str, str | None]:
    """The text and its pair with one mask in place of the word that a token is of.

    Raises:
        SelectionError: a token that is of no word.
        UnavailableError: the tokenizer has no mask.
    """
    mask = mask_of(trace.checkpoint)
    token = trace.tokens[position]
    if token.special or token.start is None:
        raise SelectionError(f"{token} belongs to no word of the text, so it cannot be masked.")
    pieces = [
        one
        for one in trace.tokens
        if not one.special and (one.segment, one.word) == (token.segment, token.word)
    ]
    start, end = min(int(piece.start or 0) for piece in pieces), max(int(piece.end or 0) for piece in pieces)
    texts = [trace.encoding.text, trace.encoding.pair]
    whole = texts[token.segment] or ""
    texts[token.segment] = whole[:start] + mask + whole[end:]
    return str(texts[0]), texts[1]


def usual_word(trace: Trace) -> int:
    """The token to look at where none is chosen: the first mask, else the last one with letters or digits."""
    mask = trace.checkpoint.tokenizer.mask_token_id
    masks = [token.position for token in trace.tokens if token.id == mask]
    own = [token for token in trace.tokens if not token.special and any(map(str.isalnum, token.display))]
    return masks[0] if masks else max((token.position for token in own), default=0)


def to_mask(trace: Trace, position: int) -> int | None:
    """What `FillMask` is to mask for a chosen token; None for one that is a mask, or of no word."""
    token = trace.tokens[position]
    stands = token.special or token.id == trace.checkpoint.tokenizer.mask_token_id
    return None if stands else position


def target(checkpoint: Checkpoint, word: str) -> tuple[int, str]:
    """A word's id in the vocabulary, and the piece that this is."""
    tokenizer = checkpoint.tokenizer
    found = tokenizer.get_vocab().get(word)
    if found is None:
        with panics_as_errors():
            pieces = tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
        if not pieces:
            raise SelectionError(
                f"{word!r} holds no character that this model's tokenizer keeps. Leave it out."
            )
        found = pieces[0]
    return int(found), str(tokenizer.convert_ids_to_tokens(int(found)))


@dataclass(frozen=True, eq=False)
class WordsAtMask:
    """Words at one mask, likeliest first."""

    tokens: Sequence[str]
    probabilities: Array
    logits: Array


@dataclass(frozen=True, eq=False, repr=False)
class FillMaskResult(PredictionResult):
    """Words for each mask, likeliest first. Arrays are [mask, word].

    Attributes:
        asked_of: the trace of the text that was given.
        read: that of the text with its masks.
        masks: the tokens that are masks.
        ids, tokens: of the words, in the vocabulary.
        logits: what the head gives.
        probabilities: softmax of these over the whole vocabulary, float64.
        ranks: place in the whole vocabulary, from 1.
        replaced: a sentence for each target of which only a piece was asked for.
    """

    question: FillMask
    asked_of: Trace
    read: Trace
    masks: tuple[Token, ...]
    ids: Array
    tokens: tuple[Sequence[str], ...]
    logits: Array
    probabilities: Array
    ranks: Array
    replaced: tuple[str, ...]

    def __post_init__(self) -> None:
        shapes = {part.shape for part in (self.ids, self.logits, self.probabilities, self.ranks)}
        if len(shapes) > 1 or self.ids.shape[0] != len(self.masks):
            raise ShapeError(f"{len(self.masks)} masks do not fit words of shapes {shapes}.")

    @property
    def hidden(self) -> str:
        """The word that was masked for the question; "" where the masks are those of the text."""
        if self.question.mask is None:
            return ""
        token = self.asked_of.tokens[int(self.question.mask)]
        return next(word.text for word in self.asked_of.encoding.words if token.position in word.positions)

    def at(self, mask: int) -> WordsAtMask:
        """Those of one mask, counted from 0."""
        return WordsAtMask(self.tokens[mask], self.probabilities[mask], self.logits[mask])

    @property
    def notes(self) -> tuple[str, ...]:
        """Targets of which only a piece was asked for, and what several masks have to do with each other."""
        if len(self.masks) < 2:
            return self.replaced
        alone = f"Each of the {len(self.masks)} masks is filled by itself, while the others stay masks."
        return (*self.replaced, alone)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The text that the model read, where a word was masked for the question, and the notes."""
        changed = self.question.mask is not None
        encoding = self.read.encoding
        read = {"masked_text": encoding.text, "masked_pair": encoding.pair} if changed else {}
        return {**read, **({"notes": list(self.notes)} if self.notes else {})}

    def frame(self) -> pd.DataFrame:
        """A row for each word at each mask: position of the mask, rank in the whole vocabulary, token, id,
        probability, logit."""
        count = self.ids.shape[1]
        return pd.DataFrame(
            {
                "position": [mask.position for mask in self.masks for _ in range(count)],
                "rank": self.ranks.ravel(),
                frames.TOKEN: frames.names([token for row in self.tokens for token in row]),
                "id": self.ids.ravel(),
                "probability": self.probabilities.ravel(),
                "logit": self.logits.ravel(),
            }
        )
