"""Python code and command-line arguments that describe the inputs of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from bert_probe.core.provenance import InputRecord
from bert_probe.model.sources import BUILT_IN


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
    """Return the name by which `open_config` finds a configuration."""
    suffix = f"@{config['revision']}" if config["revision"] else ""
    return f"{config['model']}{suffix}"


def model_arguments(model: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `bert_probe.load` for a model as Python code; [] for the built-in model."""
    revision = [f"revision={model['revision']!r}"] if model.get("revision") else []
    return [repr(model_name(model)), *revision] if model_name(model) else revision


def model_options(record: InputRecord, has_other: bool = False) -> list[str]:
    """Return the command-line options that name the model; for two models, only those for their revisions.

    Args:
        has_other: whether options, not arguments, name both models.
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
    """Return the Python expression that opens a model; `name` is the variable of a model in memory."""
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
