"""The lines that make an answer again, in Python and in the shell, from its question and its subject."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bert_probe.model.sources import BUILT_IN
from bert_probe.results.provenance import Subject
from bert_probe.results.question import Question

SENTENCES_FILE = "sentences.txt"
"""The file that both lines read where many sentences were asked about."""

LONGEST_ARGUMENT = 131_071
"""Bytes of one argument on Linux, without the NUL at its end; elsewhere it may be fewer."""


def python(question: Question, subject: Subject, csv_safe: bool = False) -> str:
    """A script whose last line is the table, or writes it as CSV in which no text is a formula."""
    lines = ["import bert_probe", ""]
    given = subject.model.get("origin") == "given"
    lines += [] if given else [f"checkpoint = {_opening(subject.model)}"]
    if subject.sentences:
        files = subject.sentences.get("files")
        if files is None:
            lines.append(f"sentences = bert_probe.read_sentences({SENTENCES_FILE!r})")
        else:
            lines += [f"{name} = bert_probe.read_tagged({one['file']!r})" for name, one in files.items()]
        read = ", ".join(files or ["sentences"])
        whom = f"checkpoint, {read}{', truncate=True' if subject.sentences['tokens_dropped'] else ''}"
    elif question.listed:
        lines.append(_tracing_all(subject.texts))
        whom = "traces"
    else:
        names = [[], ["trace"], ["a", "b"]][len(subject.texts)]
        lines += [
            f"{name} = bert_probe.from_attention(weights, tokens)  # what you gave"
            if given
            else _tracing(name, text)
            for name, text in zip(names, subject.texts, strict=True)
        ]
        whom = ", ".join(names) or "checkpoint"
    taken = f'save("{question.command}.csv", csv_safe=True)' if csv_safe else "table()"
    return "\n".join([*lines, f"bert_probe.{question!r}.of({whom}).{taken}"])


def shell(question: Question, subject: Subject, csv_safe: bool = False) -> str:
    """The command, quoted; a comment where there is none: for what is in memory only, or too long a text.

    Args:
        csv_safe: the CSV that it prints holds no text that is a formula.
    """
    model = subject.model
    if model.get("origin") in ("given", "in memory"):
        return "# What is only in memory cannot be reached from the command line; use Python."
    if len(subject.texts) > 1 and any(text["pair"] is not None for text in subject.texts):
        return "# The command line compares texts that have no second segment; use Python."
    words = ["bert-probe", question.command, *question.options()]
    for option, value in (("--model", _named(model)), ("--revision", model.get("revision"))):
        words += [option, value] if value else []
    words += ["--dtype", model["dtype"]] if model.get("dtype", "float32") != "float32" else []
    cut = any(text["tokens_dropped"] for text in subject.texts) or subject.sentences.get("tokens_dropped")
    words += ["--truncate"] if cut else []
    words += ["--csv-safe"] if csv_safe else []
    words += _texts(question, subject)
    longest = max(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if longest > LONGEST_ARGUMENT:
        return (
            f"# A text of {longest:,} bytes cannot be given to a command, whose arguments have at most "
            f"{LONGEST_ARGUMENT:,}; use Python."
        )
    return shlex.join(words)


def _texts(question: Question, subject: Subject) -> list[str]:
    """Texts come last, after a mark that ends the options where one of them begins like an option."""
    if "files" in subject.sentences:
        files = subject.sentences["files"].items()
        parted = [
            ([question.files[name]] if name in question.files else [], one["file"]) for name, one in files
        ]
        return [word for option, file in parted for word in (*option, file)]
    if subject.sentences:
        return [*question.arguments(), SENTENCES_FILE]
    options: list[str] = []
    words = question.arguments()
    for number, text in enumerate(subject.texts):
        option = question.listed or (question.second if number else "")
        options += ["--pair", text["pair"]] if text["pair"] is not None else []
        options += [option, text["text"]] if option else []
        words += [] if option else [text["text"]]
    return [*options, *(["--"] if any(word.startswith("-") for word in words) else []), *words]


def _named(model: Mapping[str, Any]) -> str | None:
    """The name that opens it; None for the built-in."""
    name: str | None = model.get("model")
    return None if name == BUILT_IN else name


def _opening(model: Mapping[str, Any]) -> str:
    if model.get("origin") == "in memory":
        return "bert_probe.wrap(model, tokenizer)"
    given = [repr(_named(model))] if _named(model) else []
    given += [f"revision={model['revision']!r}"] if model.get("revision") else []
    given += [f"dtype={model['dtype']!r}"] if model.get("dtype", "float32") != "float32" else []
    return f"bert_probe.load({', '.join(given)})"


def _tracing_all(texts: Sequence[Mapping[str, Any]]) -> str:
    pairs = [(text["text"], text["pair"]) for text in texts]
    given = [repr([text if pair is None else (text, pair) for text, pair in pairs])]
    given += ["truncate=True"] if any(text["tokens_dropped"] for text in texts) else []
    return f"traces = checkpoint.traces({', '.join(given)})"


def _tracing(name: str, text: Mapping[str, Any]) -> str:
    given = [repr(text["text"])]
    given += [repr(text["pair"])] if text["pair"] is not None else []
    given += ["truncate=True"] if text["tokens_dropped"] else []
    return f"{name} = checkpoint.trace({', '.join(given)})"
