"""What is gathered of every sentence of a corpus: the question that a store answers."""

from __future__ import annotations

from dataclasses import replace

from bert_probe.analyses.attention.attention import WORDS
from bert_probe.core.field_types import Choice, Flag, Index
from bert_probe.core.field_types_of_lists import ChoiceList, Indices
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.question import Question, param, question
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import CLASSIFYING, LABELLING, Checkpoint
from bert_probe.model.trace import resolve

PROFILES, VECTORS, NEIGHBOURS, ANSWERS = KEPT = ("profiles", "vectors", "neighbours", "answers")
"""What may be kept of a sentence beside its tokens."""

DTYPES = ("float32", "float16")


@question("corpus", command="corpus run", is_analysis=False)
class IngestConfig(Question):
    """What is kept of each sentence. Everything else is computed again when somebody looks at it.

    Attributes:
        layers: whose vectors are kept; 0 is the output of the embeddings. None for all of them.
        keep: "profiles", the measures of every head (see `Heads`); "vectors" of every token; "neighbours", of
            every token the one that each head attends to most; "answers" of the model's trained head for
            classes or for labels.
        words: merge pieces into words first, in all of these.
        dtype: in which vectors are stored; float16 rounds to 11 bits and takes half the room.
        truncate: cut sentences that are too long instead of refusing them.
    """

    inputs = OneCheckpoint()

    layers: tuple[int, ...] | None = param(
        Indices(Index("layer", 0)),
        default=(-1,),
        about="Layers whose vectors are kept; 0 is the embeddings.  [default: last]",
    )
    keep: tuple[str, ...] = param(
        ChoiceList(KEPT),
        default=(PROFILES, VECTORS),
        about=f"What is kept: {', '.join(KEPT)}.  [default: profiles,vectors]",
    )
    words: bool = param(Flag(), default=False, about=WORDS)
    dtype: str = param(
        Choice(DTYPES), default="float32", option="--vectors-as", about="How vectors are stored."
    )
    truncate: bool = param(Flag(), default=False, about="Cut sentences that are too long.", option="")

    def of(self, checkpoint: Checkpoint) -> IngestConfig:
        """The same question of this model, every layer as a number from 0, in order.

        Raises:
            SelectionError: a layer that is not there.
            UnavailableError: answers of a model that has no head for classes or labels.
        """
        about = checkpoint.description
        if ANSWERS in self.keep and not {CLASSIFYING, LABELLING} & {*checkpoint.outputs}:
            raise UnavailableError(
                f"{about.name} has no trained head for classes or labels, so there are no answers to keep. "
                f"Keep {', '.join(one for one in KEPT if one != ANSWERS)}, or use a model that has one."
            )
        given = range(about.layers + 1) if self.layers is None else self.layers
        layers = tuple(sorted({resolve(one, about.layers + 1, "layer") for one in given}))
        return replace(self, layers=layers, keep=tuple(one for one in KEPT if one in self.keep))
