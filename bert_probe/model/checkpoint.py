"""A checkpoint: a tokenizer and an encoder that belong together, ready to be asked."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_probe.errors import TextError
from bert_probe.model.encoding import Encoder, Encoding
from bert_probe.model.trace import Trace

if TYPE_CHECKING:
    import torch

    from bert_probe.model.outputs import OutputHead
    from bert_probe.model.training_history import TrainingHistory

FILLING = "fill-mask"
CLASSIFYING = "text-classification"
LABELLING = "token-classification"
ANSWERING = "question-answering"
FOLLOWING = "next-sentence-prediction"
COMPARING = "sentence-similarity"
TASKS = (FILLING, CLASSIFYING, LABELLING, ANSWERING, FOLLOWING, COMPARING)
"""What a checkpoint may have been trained for, as transformers names it."""


@dataclass(frozen=True)
class Description:
    """What a checkpoint is and where it came from.

    Attributes:
        name: the built-in's name, the folder, or the hub id; revision is the hub's commit or None.
        origin: "built-in", "local folder", "hub" or "in memory".
        architecture: the model's class; family is transformers' name for its kind.
        layers, heads, hidden_size, vocabulary_size: sizes; heads are those of one layer.
        max_tokens: the longest input, special tokens included; None where there is no limit.
        parameter_count: numbers in the weights, shared ones counted once.
        weights_sha256: of model.safetensors; of the shards' digests where there are several; of a model in
            memory see `wrapping.digest`.
        dtype, device: what it computes in and on.
        has_pooler: whether a trained pooler is there.
        shows_qkv: whether queries, keys and values can be read.
        notes: what a person should know, a sentence each: a missing pooler, weights not used.
        outputs_sha256: of the output heads: of their weights in a model in memory, see `wrapping.digest`; of
            what the config says of them in files, where the other digest is of all weights; "" for none.
    """

    name: str
    origin: str
    revision: str | None
    architecture: str
    family: str
    layers: int
    heads: int
    hidden_size: int
    vocabulary_size: int
    max_tokens: int | None
    parameter_count: int
    weights_sha256: str
    dtype: str
    device: str
    has_pooler: bool
    shows_qkv: bool
    notes: tuple[str, ...] = ()
    outputs_sha256: str = ""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened model. Safe to use from several threads at once; nothing in it changes.

    One of a model in memory, see `wrap`, is of a model that others may change.

    Attributes:
        opened: sizes, origin and digest, as it was opened; `description` is what counts.
        encoder: turns text into tokens.
        model: the transformers model; to run it there is `running`.
        libraries: name → version of what computes the numbers.
        pads: texts of different lengths may share a padded batch; False where padding would change
            their numbers, as in models that mix neighbouring tokens before the attention.
        projections: in each layer the linear module that reads the heads' outputs, one after the
            other; None where there is none that reads just them.
        folder: where its files lie; None for one that was not opened from files.
        outputs: task → its trained head.
        before: how it was taught here, the oldest training first.
    """

    opened: Description
    encoder: Encoder
    model: torch.nn.Module
    libraries: Mapping[str, str]
    pads: bool = True
    projections: tuple[torch.nn.Linear | None, ...] = ()
    folder: Path | None = None
    outputs: Mapping[str, OutputHead] = field(default_factory=dict)
    before: tuple[TrainingHistory, ...] = ()

    @property
    def description(self) -> Description:
        """Sizes, origin and digest."""
        return self.opened

    @property
    def cause(self) -> Hashable:
        """All that tells its numbers apart from those of any other model."""
        return self.description

    def now(self) -> Checkpoint:
        """The checkpoint with the weights that it has now, and that it must still have when it runs.

        Whatever runs it several times and makes one answer of that begins so.
        """
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it was trained for and can be asked, in the order of `TASKS`."""
        there = {*self.outputs, *((COMPARING,) if self.pools else ())}
        return tuple(task for task in TASKS if task in there)

    @property
    def pools(self) -> bool:
        """Whether its files say how a sentence becomes one vector, as those of sentence-transformers do."""
        return self.folder is not None and (self.folder / "modules.json").is_file()

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self.encoder.tokenizer

    def encode(self, text: str, pair: str | None = None, truncate: bool = False) -> Encoding:
        """Tokens of a text, or of a text and its pair, without running the model.

        Raises:
            EmptyTextError, TooLongError, TextError: see `Encoder.encode`.
        """
        return self.encoder.encode(text, pair, truncate)

    def trace(self, text: str, pair: str | None = None, truncate: bool = False) -> Trace:
        """Run the model once on a text and keep what it did.

        Args:
            pair: second text of the same input, after [SEP] and with segment 1.
            truncate: cut a text that is too long instead of refusing it.

        Raises:
            EmptyTextError, TooLongError, TextError: see `Encoder.encode`.
            OutOfMemoryError: the machine is too small for this text.
        """
        return self.trace_encodings([self.encode(text, pair, truncate)])[0]

    def traces(self, texts: Sequence[str | tuple[str, str | None]], truncate: bool = False) -> list[Trace]:
        """Trace many texts, or (text, pair) tuples, in padded batches; in the order given.

        Raises:
            EmptyTextError, TooLongError, TextError, OutOfMemoryError: as `trace`.
        """
        if isinstance(texts, str):
            raise TextError("Give a list of texts; for a single one there is trace.")
        pairs = [text if isinstance(text, tuple) else (text, None) for text in texts]
        return self.trace_encodings([self.encode(*pair, truncate=truncate) for pair in pairs])

    def trace_encodings(self, encodings: Sequence[Encoding]) -> list[Trace]:
        """Trace texts that are encoded already; in the order given."""
        # What runs a model takes seconds to import; here it is there, as a model is.
        from bert_probe.model.forward import batches, run

        traces: dict[int, Trace] = {}
        for group in batches([len(encoding) for encoding in encodings], pads=self.pads):
            members = [encodings[index] for index in group]
            done = run(self, members)
            traces.update(zip(group, done, strict=True))
        return [traces[index] for index in range(len(encodings))]

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        import torch

        return torch.device(self.description.device)

    @contextmanager
    def running(self) -> Iterator[Any]:
        """The model, ready to run; whatever runs it, or reads its weights, does so within.

        Raises:
            UnavailableError: a model in memory that has changed since `now`.
        """
        yield self.model

    def provenance(self, encoding: Encoding | None = None) -> dict[str, Any]:
        """Where numbers come from: model, digest, dtype, libraries, and the text if there is one."""
        about = self.description
        record: dict[str, Any] = {
            "model": about.name,
            "origin": about.origin,
            "revision": about.revision,
            "architecture": about.architecture,
            "weights_sha256": about.weights_sha256,
            "dtype": about.dtype,
            "device": about.device,
            "libraries": dict(self.libraries),
        }
        if about.outputs_sha256:
            record["outputs_sha256"] = about.outputs_sha256
        if encoding is not None:
            record |= {
                "text": encoding.text,
                "pair": encoding.pair,
                "tokens": len(encoding),
                "tokens_dropped": encoding.dropped,
            }
        return record

    @property
    def padding(self) -> dict[str, int]:
        """What fills up shorter texts of a batch, by the name of the input; 0 in all others."""
        pad = self.tokenizer.pad_token_id
        return {"input_ids": 0 if pad is None else pad}
