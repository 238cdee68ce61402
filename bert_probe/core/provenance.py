"""Where numbers come from: the model and the texts that an answer is about."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.text.labeled_texts import LabeledTexts

if TYPE_CHECKING:
    from bert_probe.text.tagged_sentences import TaggedSentence

TEXT_KEYS = ("text", "pair", "tokens", "tokens_dropped")
"""Of a trace's provenance, what is said of its text; all else is said of the model."""


@dataclass(frozen=True)
class InputRecord:
    """Who was asked: a model, or two, and the texts that were read.

    Attributes:
        model: model, origin, revision, digest of the weights, dtype, device, libraries.
        texts: text, pair, number of tokens and of those cut off; one for each trace.
        sentences: of many sentences their number, digest, and how many tokens were cut off; of tagged ones
            their files, by what they are to the question.
        other: where two models are compared, the second one, which read the same.
        configs: where the sizes of models were asked for, each of them, with weights or without.
        store: of a corpus that was gathered before, its folder's name, rows and digest.
    """

    model: Mapping[str, Any]
    texts: tuple[Mapping[str, Any], ...] = ()
    sentences: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    configs: tuple[Mapping[str, Any], ...] = ()
    store: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, *traces: Trace) -> InputRecord:
        """The subject that these traces are of.

        Raises:
            SelectionError: they are of different models, or of attention that was given, which names none.
        """
        about = traces[0].provenance
        model = {name: value for name, value in about.items() if name not in TEXT_KEYS}
        if any(_model_identity(trace) != _model_identity(traces[0]) for trace in traces):
            if any(trace.provenance.get("origin") == "given" for trace in traces):
                raise SelectionError(
                    "Attention that was given does not tell which model it is of, so two texts cannot be "
                    "compared by it. Trace both with one checkpoint."
                )
            raise SelectionError("The texts were not read by the same model. Trace them with one.")
        texts = [{name: trace.provenance.get(name) for name in TEXT_KEYS} for trace in traces]
        return cls(model, tuple(texts))

    @classmethod
    def of_model(cls, checkpoint: Checkpoint) -> InputRecord:
        """A model by itself."""
        return cls(checkpoint.provenance())

    @classmethod
    def of_sentences(cls, checkpoint: Checkpoint, sentences: Sequence[str], dropped: int) -> InputRecord:
        """Many sentences, each read by itself.

        Args:
            dropped: tokens that were cut off, over all sentences.
        """
        digest = hash_sentences(sentences)
        about = {"sentences": len(sentences), "sentences_sha256": digest, "tokens_dropped": dropped}
        return cls(checkpoint.provenance(), (), about)

    @classmethod
    def of_store(cls, model: Mapping[str, Any], name: str, rows: int, digest: str) -> InputRecord:
        """A corpus that was gathered before, of the model that read it."""
        return cls(model, store={"store": name, "rows": rows, "store_sha256": digest})

    def beside(self, other: InputRecord) -> Self:
        """The same, with the model of another subject as the second one."""
        return replace(self, other=other.model)

    @property
    def models(self) -> tuple[Mapping[str, Any], ...]:
        """The model, or both, or each whose size was asked for."""
        return self.configs or ((self.model, self.other) if self.other else (self.model,))

    @classmethod
    def of_tagged(
        cls,
        checkpoint: Checkpoint,
        files: Mapping[str, LabeledTexts | Sequence[TaggedSentence]],
        dropped: int,
    ) -> InputRecord:
        """Files of tagged sentences, or of labelled texts, each read by itself.

        Args:
            files: what they hold, by the name of the argument that each was given as.
            dropped: tokens that were cut off, over all sentences.
        """
        told = {name: describe_file(name, rows) for name, rows in files.items()}
        count = sum(one["sentences"] for one in told.values())
        about = {"sentences": count, "files": told, "tokens_dropped": dropped}
        return cls(checkpoint.provenance(), (), about)

    @property
    def record(self) -> dict[str, Any]:
        """All of it, for a file; two texts or more are listed."""
        models = {**self.model, **({"other_model": dict(self.other)} if self.other else {})}
        if len(self.texts) == 1:
            return {**models, **self.texts[0], **self.store}
        several = {"texts": [dict(text) for text in self.texts]} if self.texts else {}
        sizes = {"configs": [dict(config) for config in self.configs]} if self.configs else {}
        return {**models, **several, **sizes, **self.sentences, **self.store}


def describe_file(name: str, rows: LabeledTexts | Sequence[TaggedSentence]) -> dict[str, Any]:
    """What is said of a file that was read, its digest among it."""
    return _describe_labeled(name, rows) if isinstance(rows, LabeledTexts) else _describe_tagged(name, rows)


def hash_sentences(sentences: Sequence[str]) -> str:
    """SHA-256 of many sentences, a line each."""
    return hashlib.sha256("".join(f"{sentence}\n" for sentence in sentences).encode()).hexdigest()


def _describe_labeled(name: str, rows: LabeledTexts) -> dict[str, Any]:
    """What is said of a file of labelled texts; the name is one that the lines of a result read."""
    return {"file": f"{name}.csv", "kind": rows.kind, "sentences": len(rows.rows), "sha256": rows.digest}


def _describe_tagged(name: str, sentences: Sequence[TaggedSentence]) -> dict[str, Any]:
    """What is said of a file of tagged sentences; the name is one that the lines of a result read."""
    digest = hashlib.sha256()
    for one in sentences:
        parts = [one.words, one.tags, one.heads, one.relations, one.text, dict(one.about)]
        digest.update(json.dumps(parts, sort_keys=True).encode())
    ending = "conllu" if any(sentence.heads for sentence in sentences) else "conll"
    words = sum(len(sentence.words) for sentence in sentences)
    return {
        "file": f"{name}.{ending}",
        "sentences": len(sentences),
        "words": words,
        "sha256": digest.hexdigest(),
    }


def _model_identity(trace: Trace) -> tuple[object, ...]:
    """What makes the numbers of two traces comparable; one folder may have been opened by two names."""
    named = {"model", "origin", "revision", *TEXT_KEYS}
    causes = {name: value for name, value in trace.provenance.items() if name not in named}
    return (causes, trace.layers, trace.heads, *(state.shape[1] for state in trace.states))
