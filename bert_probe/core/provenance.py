"""Provenance of results: the models and inputs that produced them, and the code that loads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self

from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN
from bert_probe.model.trace import Trace
from bert_probe.text.documents import DocumentList
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.retrieval_data import Judgments

if TYPE_CHECKING:
    from bert_probe.text.tagged_sentences import TaggedSentence


TEXT_KEYS = ("text", "pair", "tokens", "tokens_dropped")
"""Keys in the provenance of a trace that describe its text. All other keys describe the model."""


@dataclass(frozen=True)
class InputRecord:
    """The inputs of a result: one or two models, and their input texts.

    Attributes:
        model: name, origin, revision, digest of the weights, dtype, device, libraries.
        texts: one entry per trace: text, pair, number of tokens and number of truncated tokens.
        sentences: for many sentences, their number, their digest and the number of truncated tokens. For
            files, the digest is replaced by a record of each file, keyed by argument name.
        other: the second model of a comparison, in the same form as ``model``; otherwise empty.
        configs: the models of a question about model sizes, which may have only a config.
        store: folder name, number of rows and digest of a corpus store.
    """

    model: Mapping[str, Any]
    texts: tuple[Mapping[str, Any], ...] = ()
    sentences: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    configs: tuple[Mapping[str, Any], ...] = ()
    store: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *traces: Trace) -> InputRecord:
        """Create a record for traces from the same model.

        Raises:
            SelectionError: the traces come from different models, or from different external attention.
        """
        model = {name: value for name, value in traces[0].provenance.items() if name not in TEXT_KEYS}
        if any(_model_identity(trace) != _model_identity(traces[0]) for trace in traces):
            if any(trace.provenance.get("origin") == "given" for trace in traces):
                raise SelectionError(
                    "External attention does not identify its model, so two texts cannot be compared. "
                    "Trace both texts with one checkpoint."
                )
            raise SelectionError(
                "The texts were not traced with the same model. Trace all texts with one checkpoint."
            )
        texts = [{name: trace.provenance.get(name) for name in TEXT_KEYS} for trace in traces]
        return cls(model, tuple(texts))

    @classmethod
    def of_model(cls, checkpoint: Checkpoint) -> InputRecord:
        """Create a record for a result that depends only on a model."""
        return cls(checkpoint.provenance())

    @classmethod
    def of_sentences(cls, checkpoint: Checkpoint, sentences: Sequence[str], dropped: int) -> InputRecord:
        """Create a record for sentences that the model reads separately.

        Args:
            dropped: number of truncated tokens over all sentences.
        """
        digest = hash_sentences(sentences)
        record = {"sentences": len(sentences), "sentences_sha256": digest, "tokens_dropped": dropped}
        return cls(checkpoint.provenance(), (), record)

    @classmethod
    def of_documents(cls, checkpoint: Checkpoint, documents: DocumentList, dropped: int) -> InputRecord:
        """Create a record for documents that the model reads separately, including the skipped rows.

        Args:
            dropped: number of truncated tokens over all documents.
        """
        record = cls.of_sentences(checkpoint, documents.lines, dropped)
        return replace(record, sentences={**record.sentences, **documents.about_skipped})

    @classmethod
    def of_store(cls, model: Mapping[str, Any], name: str, rows: int, digest: str) -> InputRecord:
        """Create a record for a corpus store and the model that built it."""
        return cls(model, store={"store": name, "rows": rows, "store_sha256": digest})

    def with_other_model(self, other: InputRecord) -> Self:
        """Return this record with the model of another record as its second model."""
        return replace(self, other=other.model)

    @property
    def models(self) -> tuple[Mapping[str, Any], ...]:
        """The models of the record: all configs if there are any, otherwise one or two models."""
        return self.configs or ((self.model, self.other) if self.other else (self.model,))

    @classmethod
    def of_tagged(
        cls,
        checkpoint: Checkpoint,
        files: Mapping[str, LabeledTexts | Sequence[TaggedSentence] | DocumentList | Judgments],
        dropped: int,
    ) -> InputRecord:
        """Create a record for input files: tagged sentences, labeled texts, documents or relevance judgments.

        Args:
            files: content of each file, by argument name.
            dropped: number of truncated tokens over all sentences.
        """
        file_records = {name: describe_file(name, rows) for name, rows in files.items()}
        count = sum(file["sentences"] for file in file_records.values())
        record = {"sentences": count, "files": file_records, "tokens_dropped": dropped}
        return cls(checkpoint.provenance(), (), record)

    @property
    def record(self) -> dict[str, Any]:
        """The record as a dict for JSON. A single text is merged into the dict; several texts form a list."""
        models = {**self.model, **({"other_model": dict(self.other)} if self.other else {})}
        if len(self.texts) == 1:
            return {**models, **self.texts[0], **self.store}
        texts = {"texts": [dict(text) for text in self.texts]} if self.texts else {}
        configs = {"configs": [dict(config) for config in self.configs]} if self.configs else {}
        return {**models, **texts, **configs, **self.sentences, **self.store}


def describe_file(
    name: str, rows: LabeledTexts | Sequence[TaggedSentence] | DocumentList | Judgments
) -> dict[str, Any]:
    """Return the record of a file: its name in code snippets, number of sentences and SHA-256 digest."""
    if isinstance(rows, Judgments):
        return {"file": f"{name}.tsv", "sentences": 0, "judgments": len(rows), "sha256": rows.digest}
    if isinstance(rows, DocumentList):
        digest = hash_sentences(rows.lines)
        return {"file": f"{name}.jsonl", "sentences": len(rows), "sha256": digest, **rows.about_skipped}
    if not isinstance(rows, LabeledTexts):
        return _describe_tagged(name, rows)
    return {"file": f"{name}.csv", "kind": rows.kind, "sentences": len(rows.rows), "sha256": rows.digest}


def hash_sentences(sentences: Sequence[str]) -> str:
    """Return the SHA-256 digest of sentences, one per line."""
    return hashlib.sha256("".join(f"{sentence}\n" for sentence in sentences).encode()).hexdigest()


def _describe_tagged(name: str, sentences: Sequence[TaggedSentence]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for sentence in sentences:
        parts = [
            sentence.words,
            sentence.tags,
            sentence.heads,
            sentence.relations,
            sentence.text,
            dict(sentence.metadata),
        ]
        digest.update(json.dumps(parts, sort_keys=True).encode())
    suffix = "conllu" if any(sentence.heads for sentence in sentences) else "conll"
    words = sum(len(sentence.words) for sentence in sentences)
    return {
        "file": f"{name}.{suffix}",
        "sentences": len(sentences),
        "words": words,
        "sha256": digest.hexdigest(),
    }


def _model_identity(trace: Trace) -> tuple[object, ...]:
    """Return the values that must be equal for two traces to be comparable.

    The model's name is not one of the values, because a folder can be opened under several names.
    """
    names = {"model", "origin", "revision", *TEXT_KEYS}
    settings = {name: value for name, value in trace.provenance.items() if name not in names}
    return (settings, trace.layers, trace.heads, *(state.shape[1] for state in trace.states))


def end_of_options(words: Sequence[str]) -> list[str]:
    """Return command-line arguments, preceded by `--` if one of them begins with a dash."""
    return ["--", *words] if any(word.startswith("-") for word in words) else list(words)


def truncate_argument(record: InputRecord) -> list[str]:
    """Return `["truncate=True"]` as Python code if a sentence was truncated, otherwise an empty list."""
    return ["truncate=True"] if record.sentences["tokens_dropped"] else []


def model_name(model: Mapping[str, Any]) -> str | None:
    """Return the model name to pass to `bert_probe.load`, or None for the built-in model."""
    name: str | None = model.get("model")
    return None if name == BUILT_IN else name


def config_name(config: Mapping[str, Any]) -> str:
    """Return the argument of `open_config` for a config: its model name and, after @, its revision."""
    suffix = f"@{config['revision']}" if config["revision"] else ""
    return f"{config['model']}{suffix}"


def model_arguments(model: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `bert_probe.load` for a model as Python code; [] for the built-in model."""
    revision = [f"revision={model['revision']!r}"] if model.get("revision") else []
    return [repr(model_name(model)), *revision] if model_name(model) else revision


def model_options(record: InputRecord, has_other: bool = False) -> list[str]:
    """Return the command-line options for the models of a record.

    If both models are positional arguments, only the options for their revisions are returned.

    Args:
        has_other: whether the command has the option --other for a second model.
    """
    if has_other:
        options = [("--model", model_name(record.model)), ("--revision", record.model.get("revision"))]
        options += [
            ("--other", record.other.get("model")),
            ("--other-revision", record.other.get("revision")),
        ]
    elif record.other:
        sides = zip(("--revision-a", "--revision-b"), record.models, strict=True)
        options = [(option, model.get("revision")) for option, model in sides]
    else:
        options = [("--model", model_name(record.model)), ("--revision", record.model.get("revision"))]
    return [word for option, value in options if value for word in (option, value)]


def load_expression(model: Mapping[str, Any], name: str = "model") -> str:
    """Return the Python expression that opens a model; `name` is the variable name of an in-memory model."""
    if model.get("origin") == "in memory":
        return f"bert_probe.wrap({name}, tokenizer)"
    arguments = model_arguments(model)
    arguments += [f"dtype={model['dtype']!r}"] if model.get("dtype", "float32") != "float32" else []
    return f"bert_probe.load({', '.join(arguments)})"


def trace_statement(name: str, checkpoint: str, text: Mapping[str, Any]) -> str:
    """Return the Python statement that traces a text."""
    arguments = [repr(text["text"])]
    arguments += [repr(text["pair"])] if text["pair"] is not None else []
    arguments += ["truncate=True"] if text["tokens_dropped"] else []
    return f"{name} = {checkpoint}.trace({', '.join(arguments)})"


def read_expression(file: Mapping[str, Any]) -> str:
    """Return the Python expression that reads an input file."""
    if "kind" in file:
        return f"bert_probe.read_labeled_texts({file['file']!r}, {file['kind']!r})"
    names = {".jsonl": "read_documents", ".tsv": "read_judgments"}
    function = names.get(PurePath(file["file"]).suffix, "read_tagged_sentences")
    return f"bert_probe.{function}({file['file']!r})"
