"""The configuration of a corpus run: what is extracted from every sentence and stored."""

from __future__ import annotations

from dataclasses import replace

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.core.field_types import Choice, Flag, Index
from bert_probe.core.field_types_of_lists import ChoiceList, Indices
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.question import Question, param, question
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.trace import resolve_index

PROFILES, VECTORS, NEIGHBORS, ANSWERS = OPTIONAL_TABLES = ("profiles", "vectors", "neighbors", "answers")
"""Tables that can be kept in addition to rows, tokens and refusals."""

DTYPES = ("float32", "float16")


@question("corpus ingest", command="corpus run", is_analysis=False)
class IngestConfig(Question):
    """What a corpus run extracts from each sentence and stores.

    Attributes:
        layers: layers whose vectors are stored; 0 is the output of the embeddings, None means all.
        keep: optional tables: "profiles", the measures of every head (see `Heads`); "vectors", the hidden
            states of every token; "neighbors", the token that each token attends to most, for every head;
            "answers", the predictions of the model's classification or token classification head.
        words: merge the tokens of each word before computing any of these tables.
        dtype: the data type of stored vectors; float16 has 11 significant bits and takes half the space.
        truncate: truncate sentences that are too long instead of rejecting them.
    """

    inputs = OneCheckpoint()

    layers: tuple[int, ...] | None = param(
        Indices(Index("layer", 0)),
        default=(-1,),
        about="Layers whose vectors are kept; 0 is the output of the embeddings.  [default: last]",
    )
    keep: tuple[str, ...] = param(
        ChoiceList(OPTIONAL_TABLES),
        default=(PROFILES, VECTORS),
        about=f"Tables to keep: {', '.join(OPTIONAL_TABLES)}.  [default: profiles,vectors]",
    )
    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    dtype: str = param(
        Choice(DTYPES), default="float32", option="--vector-dtype", about="Data type of stored vectors."
    )
    truncate: bool = param(Flag(), default=False, about="Truncate sentences that are too long.", option="")

    def of(self, checkpoint: Checkpoint) -> IngestConfig:
        """Return this configuration for one model: layers sorted and counted from 0, tables in fixed order.

        Raises:
            SelectionError: the model does not have one of the layers.
            UnavailableError: `keep` has "answers", but the model has no trained classification head.
        """
        description = checkpoint.description
        if ANSWERS in self.keep and not {TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION} & {*checkpoint.outputs}:
            tables = ", ".join(table for table in OPTIONAL_TABLES if table != ANSWERS)
            raise UnavailableError(
                f"{description.name} has no trained classification head, which the table {ANSWERS} needs. "
                f"Keep {tables}, or use a model with a classification head."
            )
        layers = range(description.layers + 1) if self.layers is None else self.layers
        resolved = {resolve_index(layer, description.layers + 1, "layer") for layer in layers}
        return replace(
            self,
            layers=tuple(sorted(resolved)),
            keep=tuple(table for table in OPTIONAL_TABLES if table in self.keep),
        )
