"""Code snippets that reproduce a result: Python, shell and HTTP."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bert_probe.core.provenance import InputRecord, config_name, model_name, model_options
from bert_probe.core.question import QUESTIONS, Question

MAX_ARGUMENT_BYTES = 131_071
"""Maximum size of a command-line argument on Linux, in bytes without the final NUL. Other systems may allow
less."""

MAX_LINE_BYTES = 4_000
"""Maximum size of a line of a shell command in bytes. A terminal cuts longer lines that are pasted into a
shell without line editing, such as dash, so that the next line of a text could be run as a command.
"""
_PART_CHARACTERS = 500
"""Number of characters of the parts of a long argument; a quoted character has at most 5 bytes."""

DEFAULT_URL = "http://127.0.0.1:8501"

_UNSAFE_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]|\n\^")
"""Matches what an interactive shell obeys within quotation marks: C0 controls except line feed, DEL, and ^ at
the start of a line, which substitutes text."""
_ESCAPED_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\!]")  # ! is history expansion in interactive shells


def python(question: Question, record: InputRecord, csv_safe: bool = False) -> str:
    """Return a Python script whose last line computes the table, or saves it as CSV with escaped formulas."""
    statements, arguments = question.inputs.python(record)
    ending = f'save("{question.command}.csv", csv_safe=True)' if csv_safe else "table()"
    return "\n".join(
        ["import bert_probe", "", *statements, f"bert_probe.{question!r}.of({arguments}).{ending}"]
    )


def shell(question: Question, record: InputRecord, csv_safe: bool = False) -> str:
    """Return the shell command that prints the table, or a comment that explains why no command can.

    Args:
        csv_safe: whether the command prints CSV with escaped formulas.
    """
    model = record.model
    if any(model.get("origin") in ("given", "in memory") for model in record.models):
        return "# A model that is only in memory cannot be used from the command line; use Python."
    if record.configs:
        return _shell_of_configs(question, record, csv_safe)
    words = ["bert-probe", *question.command.split(), *question.options()]
    if not record.store:
        if _has_lost_pair(question, record):
            return "# The command line cannot compare sentence pairs. Use Python."
        if len({model.get("dtype") for model in record.models}) > 1:
            return "# The command line opens both models in the same dtype; use Python."
        words += model_options(record, question.inputs.has_other)
        words += ["--dtype", model["dtype"]] if model.get("dtype", "float32") != "float32" else []
        words += ["--truncate"] if _is_truncated(record) else []
    words += ["--csv-safe"] if csv_safe else []
    return _command([*words, *question.inputs.words(question.arguments(), record)])


def http(question: Question, record: InputRecord, url: str = DEFAULT_URL) -> str:
    """Return the curl command for the HTTP API, or a comment that explains why the API cannot be used.

    The body contains only the names of input files. A comment says where to add their content.

    Args:
        url: address of the app.
    """
    if record.store:
        return "# The HTTP API does not read corpus stores; use Python or the command line."
    if question.analysis not in QUESTIONS:
        return "# The HTTP API does not answer this question; use Python or the command line."
    if any(model.get("origin") in ("given", "in memory") for model in record.models):
        return "# A model that is only in memory cannot be used over HTTP; use Python."
    if any(model.get("dtype", "float32") != "float32" for model in record.models):
        return "# The HTTP API computes in float32; use Python or the command line."
    content = body(question, record)
    text = json.dumps(content, ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_ARGUMENT_BYTES:
        return (
            f"# The body has {size:,} bytes, but an argument of a command has at most "
            f"{MAX_ARGUMENT_BYTES:,}; use Python."
        )
    sentences = content.get(question.inputs.list_name)
    files = [*content.get("files", {}).values(), *filter(None, [sentences])]
    names = ", ".join(dict.fromkeys(file["file"] for file in files))
    note = (
        [f'# Add a "content" field with the text of the file next to each "file" field: {names}.']
        if names
        else []
    )
    return "\n".join(
        [*note, shell_join(["curl", f"{url}/api/v1/{url_name(question.analysis)}", "--json", text])]
    )


def url_name(analysis: str) -> str:
    """Return the name of an analysis in a URL: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", analysis.lower()).strip("-")


def body(question: Question, record: InputRecord) -> dict[str, Any]:
    """Return the JSON body of the HTTP request for a question and the inputs in a record."""
    content: dict[str, Any] = _model(record.model)
    content |= {"other_model": _model(record.other)} if record.other else {}
    texts = [text["text"] if text["pair"] is None else _pair(text) for text in record.texts]
    if len(texts) == 1:
        content |= _pair(record.texts[0])
    elif texts:
        content["texts"] = texts
    if "files" in record.sentences:
        files = record.sentences["files"].items()
        content["files"] = {
            name: {key: file[key] for key in ("file", "kind") if key in file} for name, file in files
        }
    elif record.sentences:
        content[question.inputs.list_name] = {"file": question.inputs.list_file}
    content |= {"truncate": True} if _is_truncated(record) else {}
    values = question.non_default_json()
    return {**content, **({"question": values} if values else {})}


def url_parameters(record: InputRecord) -> dict[str, str] | None:
    """Return the URL parameters with which the app opens the texts and the model of a record.

    Returns:
        The parameters; None for a model or attention that is only in memory.
    """
    if any(model.get("origin") in ("given", "in memory") for model in record.models):
        return None
    texts = [str(text["text"]) for text in record.texts]
    pair = next((text["pair"] for text in record.texts if text["pair"] is not None), None)
    parameters = dict(zip("ab", texts if pair is None else [*texts, pair], strict=False))
    parameters |= {"relation": "pair"} if pair is not None else {}
    parameters |= _model(record.model)
    dtype = record.model.get("dtype", "float32")
    parameters |= {"dtype": dtype} if dtype != "float32" else {}
    return parameters | ({"truncate": "1"} if any(text["tokens_dropped"] for text in record.texts) else {})


def _command(words: Sequence[str]) -> str:
    longest = max(map(_bytes, words))
    if longest > MAX_ARGUMENT_BYTES:
        return (
            f"# A text has {longest:,} bytes, but an argument of a command has at most "
            f"{MAX_ARGUMENT_BYTES:,}; use Python."
        )
    if any("\0" in word for word in words):
        return (
            "# A text contains NUL, but an argument of a command cannot contain this character; use Python."
        )
    return shell_join(words)


def shell_join(words: Sequence[str]) -> str:
    """Return a command for bash, dash, zsh and other POSIX shells, without control characters.

    Line breaks are kept within quotation marks. All other control characters are escaped: an interactive
    shell obeys them even within quotation marks. A pasted Ctrl+C would discard the beginning of the command,
    and the shell would run the next line of the text; a tab could complete a file name and end the quotation.
    """
    command = " ".join(map(_quote, words))
    return command if _has_short_lines(command) else _join_in_short_lines(words)


def _has_short_lines(command: str) -> bool:
    return all(_bytes(line) <= MAX_LINE_BYTES for line in command.split("\n"))


def _join_in_short_lines(words: Sequence[str]) -> str:
    """Return the command with a backslash and a line break between parts of arguments where necessary."""
    command, length = "", 0
    for word in words:
        for start in range(0, max(1, len(word)), _PART_CHARACTERS):
            separator = " " if command and not start else ""
            part = _quote(word[start : start + _PART_CHARACTERS])
            lines = part.split("\n")
            if length + _bytes(lines[0]) + len(" \\") > MAX_LINE_BYTES:
                separator, length = f"{separator}\\\n", 0
            command += separator + part
            length = _bytes(lines[-1]) + (length + len(separator) if len(lines) == 1 else 0)
    return command


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _quote(word: str) -> str:
    if not _UNSAFE_CHARACTERS.search(word):
        quoted = shlex.quote(word)
        return (
            f"'{word}'" if quoted.startswith("=") else quoted
        )  # zsh replaces =name by the path of a command
    # Command substitution removes line breaks at the end. `$'...'` is shorter, but unknown to dash.
    start = word.rstrip("\n")
    escaped = _ESCAPED_CHARACTERS.sub(lambda match: f"\\0{ord(match[0]):03o}", start)
    end = word[len(start) :]
    return f'"$(printf %b {shlex.quote(escaped)})"{shlex.quote(end) if end else ""}'


def _shell_of_configs(question: Question, record: InputRecord, csv_safe: bool) -> str:
    """Return the shell command for a question about configs. The last config may be that of an open model."""
    *configs, last = record.configs
    configs, opened = (configs, last) if "weights_sha256" in last else ([*configs, last], None)
    if any("weights_sha256" in config for config in configs):
        return (
            "# The command line accepts only one checkpoint (--model) next to configs (--config); use Python."
        )
    words = ["bert-probe", question.command]
    words += [word for config in configs for word in ("--config", config_name(config))]
    if opened is not None:
        words += ["--model", opened["model"]]
        words += ["--revision", opened["revision"]] if opened["revision"] else []
        words += ["--dtype", opened["dtype"]] if opened["dtype"] != "float32" else []
    return shell_join([*words, *(["--csv-safe"] if csv_safe else [])])


def _has_lost_pair(question: Question, record: InputRecord) -> bool:
    """Return whether the inputs include a text pair that the shell command cannot express."""
    has_pair = any(text["pair"] is not None for text in record.texts)
    return len(record.texts) > 1 and has_pair and not getattr(question.inputs, "pair_options", ())


def _is_truncated(record: InputRecord) -> bool:
    return bool(
        any(text["tokens_dropped"] for text in record.texts) or record.sentences.get("tokens_dropped")
    )


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    names = {"model": model_name(model), "revision": model.get("revision")}
    return {name: value for name, value in names.items() if value}


def _pair(text: Mapping[str, Any]) -> dict[str, Any]:
    return {name: text[name] for name in ("text", "pair") if text[name] is not None}
