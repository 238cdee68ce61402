"""A checkpoint: an encoder with its tokenizer, its task heads and a record of earlier training runs."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_probe.errors import CheckpointError, TextError
from bert_probe.model.encoding import Encoder, Encoding
from bert_probe.model.lengths import check_list, check_trace_tokens
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import Stamp, has_file, read_json
from bert_probe.model.trace import Trace

if TYPE_CHECKING:
    import torch

    from bert_probe.errors import ProbeError
    from bert_probe.model.late_interaction import MultiVectorModel
    from bert_probe.model.outputs import OutputHead
    from bert_probe.model.sentence_modules import SentenceModel


FILL_MASK = "fill-mask"
TEXT_CLASSIFICATION = "text-classification"
TOKEN_CLASSIFICATION = "token-classification"
QUESTION_ANSWERING = "question-answering"
NEXT_SENTENCE_PREDICTION = "next-sentence-prediction"
SENTENCE_SIMILARITY = "sentence-similarity"
TASKS = (
    FILL_MASK,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    QUESTION_ANSWERING,
    NEXT_SENTENCE_PREDICTION,
    SENTENCE_SIMILARITY,
)
"""Tasks that a checkpoint may have been trained for, by their names in transformers and
sentence-transformers.
"""


@dataclass(frozen=True)
class Description:
    """Origin, sizes and digests of a checkpoint.

    Attributes:
        name: the built-in model's name, the folder, or the Hub ID.
        origin: "built-in", "local folder", "hub" or "in memory".
        revision: the commit on the hub, or None.
        architecture, family: the model's class name, and its `model_type` in transformers.
        layers, heads, hidden_size, vocabulary_size: sizes of the model; `heads` counts attention heads per
            layer.
        max_tokens: maximum number of input tokens, special tokens included; None for no limit.
        parameter_count: number of parameters; shared parameters count once.
        weights_sha256: SHA-256 of model.safetensors, or of the digests of all shards if the weights are
            sharded. For a model in memory see `from_model.digest`.
        dtype, device: data type and device of the computation.
        has_pooler: whether the model has a trained pooler.
        no_qkv: a sentence that says why queries, keys and values cannot be recorded; "" if they can.
        is_eager: whether the model computes attention with its own code instead of the fused kernel.
        is_causal: whether each token attends only to itself and to the tokens before it, in every layer.
        values_per_token: number of values in the hidden states, queries, keys and values of a token.
        bias_count: number of biases of shape [head, query, key] that are added to the scores; layers that
            share a bias count once.
        notes: sentences for the user, for example about a missing pooler or unused weights.
        sentence_model_sha256: SHA-256 of the settings and weights of the sentence-transformers modules; "" if
            there are none.
        outputs_sha256: SHA-256 of the task heads; "" if there are none. For a model loaded from files, this
            digest covers the heads' configuration (`weights_sha256` covers their weights); for a model in
            memory, it covers the heads' weights.
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
    no_qkv: str = ""
    is_eager: bool = False
    notes: tuple[str, ...] = ()
    outputs_sha256: str = ""
    is_causal: bool = False
    values_per_token: int = 0
    bias_count: int = 0
    sentence_model_sha256: str = ""

    @property
    def qkv_notes(self) -> tuple[str, ...]:
        """Return a tuple with a note if queries, keys and values are unavailable; otherwise ()."""
        return (f"Queries, keys and values cannot be shown. {self.no_qkv}",) if self.no_qkv else ()

    @property
    def implementation(self) -> str:
        """Return the name of the model's attention implementation in transformers."""
        from bert_probe.model.capture import IMPLEMENTATION

        return "eager" if self.is_eager else IMPLEMENTATION

    @property
    def shows_qkv(self) -> bool:
        """Return whether queries, keys and values can be recorded."""
        return not self.no_qkv

    def trace_bytes(self, tokens: int) -> int:
        """Return the size of a trace in float32, in bytes, without the pooled vector and the tokens.

        It consists of the hidden states, and of the queries, keys, values and biases or, if these are
        unavailable, of the attention weights of all layers.
        """
        matrices = (self.bias_count if self.shows_qkv else self.layers) * self.heads * tokens**2
        return 4 * (self.values_per_token * tokens + matrices)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded model and its tokenizer. Immutable, and safe to use from several threads.

    The checkpoint of a model in memory (see `wrap`) is an exception: other code may change the model's
    weights.

    Attributes:
        initial_description: sizes, origin and digest at loading time; use `description` for current values.
        encoder: converts text to tokens.
        model: the transformers model. Run it only inside `running`.
        libraries: versions of the libraries that compute the results, by name.
        pads: whether texts of different lengths may share a padded batch; False if padding would change
            the output, as in models that mix neighboring tokens before the attention.
        projections: for each layer the output projection, a linear module whose input is exactly the
            concatenated outputs of the attention heads; None for a layer without such a module.
        folder: the folder with the checkpoint's files; None for a model in memory.
        files: stamp of the files of a local folder, taken before they were read; None for other models.
        outputs: the trained task heads, by task.
        training_history: earlier training runs of this app on the model, oldest first.
        sentence_model: the modules with which sentence-transformers encodes a text as one vector; None if the
            files do not describe such modules, or if a module is not supported.
        sentence_model_error: the error if `sentence_model` is None although the files describe such modules.
        multi_vector_model: the modules of a late-interaction checkpoint, which encodes a text as one vector
            per token; None for other checkpoints, or if a module is not supported.
        multi_vector_error: the error if `multi_vector_model` is None for a late-interaction checkpoint.
        lock: reentrant context that only one thread may enter, for a model that a forward pass changes.
    """

    initial_description: Description
    encoder: Encoder
    model: torch.nn.Module
    libraries: Mapping[str, str]
    pads: bool = True
    projections: tuple[torch.nn.Linear | None, ...] = ()
    folder: Path | None = None
    files: Stamp | None = None
    outputs: Mapping[str, OutputHead] = field(default_factory=dict)
    training_history: tuple[TrainingHistory, ...] = ()
    sentence_model: SentenceModel | None = None
    sentence_model_error: ProbeError | None = None
    multi_vector_model: MultiVectorModel | None = None
    multi_vector_error: ProbeError | None = None
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def description(self) -> Description:
        """Return the sizes, the origin and the weights digest of the model."""
        return self.initial_description

    @property
    def cache_key(self) -> Hashable:
        """Return the key under which results are cached; models with different output have different keys."""
        return self.description, self.files

    def snapshot(self) -> Checkpoint:
        """Return a checkpoint pinned to the current weights; running it fails if the weights have changed.

        Call this method before a result is computed from several forward passes.
        """
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the tasks that the checkpoint can perform, in the order of `TASKS`."""
        available = {*self.outputs, *((SENTENCE_SIMILARITY,) if self.has_pooling else ())}
        return tuple(task for task in TASKS if task in available)

    @property
    def has_pooling(self) -> bool:
        """Return whether sentence-transformers files in the checkpoint define how to pool token vectors."""
        has_files = self.sentence_model is not None or self.sentence_model_error is not None
        return has_files and not self.is_late_interaction

    @property
    def is_late_interaction(self) -> bool:
        """Return whether the checkpoint's files describe a late-interaction model."""
        return self.multi_vector_model is not None or self.multi_vector_error is not None

    @property
    def tokenizer(self) -> Any:
        """Return the Hugging Face tokenizer."""
        return self.encoder.tokenizer

    def encode(self, text: str, pair: str | None = None, truncate: bool = False) -> Encoding:
        """Tokenize a text, or a text pair, without running the model.

        Raises:
            EmptyTextError, TooLongError, TextError: see `Encoder.encode`; also if the text has more tokens
                than a public server supports.
        """
        encoding = self.encoder.encode(text, pair, truncate)
        check_trace_tokens(len(encoding))
        return encoding

    def trace(self, text: str, pair: str | None = None, truncate: bool = False) -> Trace:
        """Run the model once on a text and record its hidden states, queries, keys and values.

        Args:
            pair: second text of the same input, after [SEP] and with segment 1.
            truncate: truncate a text that is too long instead of raising TooLongError.

        Raises:
            EmptyTextError, TooLongError, TextError: see `Encoder.encode`.
            OutOfMemoryError: the text needs more memory than is available.
        """
        return self.trace_encodings([self.encode(text, pair, truncate)])[0]

    def traces(self, texts: Sequence[str | tuple[str, str | None]], truncate: bool = False) -> list[Trace]:
        """Trace texts, or (text, pair) tuples, in padded batches; return the traces in the same order.

        Raises:
            EmptyTextError, TooLongError, TextError, OutOfMemoryError: as in `trace`.
        """
        check_list(texts, "text")
        pairs = [text if isinstance(text, tuple) else (text, None) for text in texts]
        return self.trace_encodings([self.encode(*pair, truncate=truncate) for pair in pairs])

    def trace_encodings(self, encodings: Sequence[Encoding]) -> list[Trace]:
        """Trace tokenized texts; return the traces in the same order."""
        # Imported here because importing torch takes seconds. Loading the model has already imported torch.
        from bert_probe.model.forward import group_by_length, run

        traces: dict[int, Trace] = {}
        for group in group_by_length([len(encoding) for encoding in encodings], pads=self.pads):
            group_encodings = [encodings[index] for index in group]
            group_traces = run(self, group_encodings)
            traces.update(zip(group, group_traces, strict=True))
        return [traces[index] for index in range(len(encodings))]

    @property
    def device(self) -> torch.device:
        """Return the device of the computation."""
        import torch

        return torch.device(self.description.device)

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Yield the model. Run it and read its weights only inside this context.

        Raises:
            UnavailableError: a model in memory has changed since `snapshot`.
        """
        with self.lock, self._captured():
            yield self.model

    def _captured(self) -> AbstractContextManager[None]:
        """Return a context in which `capture.recording` can record this model's attention."""
        from bert_probe.model.eager_attention import eager_attention

        description = self.initial_description
        return eager_attention() if description.is_eager and description.shows_qkv else nullcontext()

    def provenance(self, encoding: Encoding | None = None) -> dict[str, Any]:
        """Return the provenance of results: model, digest, dtype, libraries, and the texts of `encoding`."""
        description = self.description
        record: dict[str, Any] = {
            "model": description.name,
            "origin": description.origin,
            "revision": description.revision,
            "architecture": description.architecture,
            "weights_sha256": description.weights_sha256,
            "dtype": description.dtype,
            "device": description.device,
            "libraries": dict(self.libraries),
        }
        if description.outputs_sha256:
            record["outputs_sha256"] = description.outputs_sha256
        if description.sentence_model_sha256:
            record["sentence_model_sha256"] = description.sentence_model_sha256
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
        """Return the padding value of each model input; inputs not listed are padded with 0."""
        # The padding token may have been added without a row in the embedding. Attention ignores its value.
        pad = self.tokenizer.pad_token_id
        is_valid = pad is not None and 0 <= pad < self.description.vocabulary_size
        return {"input_ids": pad if is_valid else 0}


Line = tuple[int, str, str | None]
"""A text from a file: line number (from 1), text, and the second text of a pair or None."""


def encode_texts(
    checkpoint: Checkpoint,
    lines: Sequence[Line],
    truncate: bool,
    progress: Progress = no_progress,
    name: str = "",
) -> list[Encoding]:
    """Encode all texts, so that errors are raised before the model runs.

    Args:
        checkpoint: the model.
        lines: the texts with their line numbers.
        truncate: truncate texts that are too long instead of raising an error.
        progress: called with (0, number of texts) before each text is encoded, so that the work can be
            canceled.
        name: name of the file in error messages; "" if there is only one file.

    Raises:
        EmptyTextError, TooLongError, TextError: a text cannot be encoded; the message names its line.
    """
    encodings = []
    for line, text, pair in lines:
        progress(0, len(lines))
        try:
            encodings.append(checkpoint.encode(text, pair, truncate))
        except TextError as error:
            where = f"{name}, line" if name else "Line"
            raise type(error)(f"{where} {line:,}: {error}") from None
    return encodings


HISTORY_FILE = "bert_probe.json"
"""Name of the file in a trained model's folder that lists its training runs, oldest first."""


@dataclass(frozen=True)
class TrainingHistory:
    """The data and the held-out split of one training run.

    Attributes:
        data: SHA-256 of the data, as in the provenance; includes held-out examples if a share was held out.
        held_out: SHA-256 of separate held-out data; "" if a share of `data` was held out.
        share, seed: the held-out share and the seed of the split; 0 and 0 for separate held-out data.
    """

    data: str
    held_out: str
    share: float
    seed: int


def read_training_history(folder: Path) -> tuple[TrainingHistory, ...]:
    """Return the training runs recorded in a folder; () if the record is missing or invalid."""
    try:
        records = read_json(folder / HISTORY_FILE)["trainings"] if has_file(folder, HISTORY_FILE) else []
        trainings = tuple(TrainingHistory(**record) for record in records)
    except (CheckpointError, TypeError, KeyError):
        return ()
    return trainings if all(map(_is_valid, trainings)) else ()


def _is_valid(training: TrainingHistory) -> bool:
    texts, numbers = (training.data, training.held_out), (training.share, training.seed)
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int | float) for number in numbers
    )


def write_training_history(folder: Path, trainings: Sequence[TrainingHistory]) -> None:
    """Write a model's training runs to `HISTORY_FILE` in its folder."""
    record = {"trainings": [asdict(training) for training in trainings]}
    (folder / HISTORY_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def overlap_warning(earlier: Sequence[TrainingHistory], training: TrainingHistory) -> str:
    """Return a warning if earlier training may have used the held-out data of a training run; otherwise "".

    An earlier run with the same data, share and seed causes no warning, because it held out the same rows.
    """
    for previous in reversed(earlier):
        if training.held_out and previous.data == training.held_out:
            return _WARNING.format(
                "on the held-out data", "Hold out data on which the model was not trained."
            )
        same_split = (previous.held_out, previous.share, previous.seed) == (
            training.held_out,
            training.share,
            training.seed,
        )
        if not training.held_out and training.share and previous.data == training.data and not same_split:
            split = (
                f"a share of {previous.share:g} with seed {previous.seed}" if previous.share else "nothing"
            )
            again = f"{split} again" if previous.share else "other data"
            return _WARNING.format(
                f"on this data, of which {split} was held out",
                f"Hold out {again}, or start from a model that was not trained on this data.",
            )
    return ""


_WARNING = (
    "This model was trained {}. It may have been trained on examples that are held out now, so its scores "
    "may be too good. {}"
)
