"""The lines that make an answer again, in Python, in the shell and over HTTP, from question and subject."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question
from bert_probe.model.sources import BUILT_IN

SENTENCES_FILE = "sentences.txt"
"""The file that both lines read where many sentences were asked about."""

_SIDES = (("a", "checkpoint"), ("b", "other"))
"""Of two models that read one text: what each trace is called, and what made it."""

LONGEST_ARGUMENT = 131_071
"""Bytes of one argument on Linux, without the NUL at its end; elsewhere it may be fewer."""

AT = "http://127.0.0.1:8501"
"""Where the app is unless it is told otherwise."""


def python(question: Question, subject: InputRecord, csv_safe: bool = False) -> str:
    """A script whose last line is the table, or writes it as CSV in which no text is a formula."""
    lines = ["import bert_probe", ""]
    taken = f'save("{question.command}.csv", csv_safe=True)' if csv_safe else "table()"
    if subject.configs:
        models = ", ".join(map(_sized, subject.configs))
        return "\n".join([*lines, f"bert_probe.{question!r}.of({models}).{taken}"])
    if subject.store:
        return "\n".join([*lines, *_storing(question, subject, taken)])
    given = subject.model.get("origin") == "given"
    lines += [] if given else [f"checkpoint = {opening(subject.model)}"]
    lines += [f"other = {opening(subject.other, 'other_model')}"] if subject.other else []
    models = "checkpoint, other" if subject.other else "checkpoint"
    if subject.sentences:
        files = subject.sentences.get("files")
        if files is None:
            lines.append(f"sentences = bert_probe.read_sentences({SENTENCES_FILE!r})")
        else:
            lines += [f"{name} = bert_probe.{_reading(one)}" for name, one in files.items()]
        cut = ["truncate=True"] if subject.sentences["tokens_dropped"] else []
        whom = ", ".join([models, *(files or ["sentences"]), *cut])
    elif question.listed:
        lines.append(_tracing_all(subject.texts))
        whom = "traces"
    elif subject.other:
        read = [_tracing(*names, text) for text in subject.texts for names in _SIDES]
        lines += read
        whom = "a, b" if read else models
    else:
        names = [[], ["trace"], ["a", "b"]][len(subject.texts)]
        lines += [
            f"{name} = bert_probe.from_attention(weights, tokens)  # what you gave"
            if given
            else _tracing(name, "checkpoint", text)
            for name, text in zip(names, subject.texts, strict=True)
        ]
        whom = ", ".join(names) or "checkpoint"
    return "\n".join([*lines, f"bert_probe.{question!r}.of({whom}).{taken}"])


def shell(question: Question, subject: InputRecord, csv_safe: bool = False) -> str:
    """The command, quoted; a comment where there is none: for what is in memory only, or too long a text.

    Args:
        csv_safe: the CSV that it prints holds no text that is a formula.
    """
    model = subject.model
    if any(model.get("origin") in ("given", "in memory") for model in subject.models):
        return "# What is only in memory cannot be reached from the command line; use Python."
    if subject.configs:
        return _sizes(question, subject, csv_safe)
    if subject.store:
        return _stored(question, subject, csv_safe)
    paired = any(text["pair"] is not None for text in subject.texts)
    if len(subject.texts) > 1 and paired and not question.pair_options:
        return "# The command line compares texts that have no second segment; use Python."
    if len({model.get("dtype") for model in subject.models}) > 1:
        return "# The command line opens both models in one dtype; use Python."
    words = ["bert-probe", question.command, *question.options(), *_models(subject)]
    words += ["--dtype", model["dtype"]] if model.get("dtype", "float32") != "float32" else []
    cut = any(text["tokens_dropped"] for text in subject.texts) or subject.sentences.get("tokens_dropped")
    words += ["--truncate"] if cut else []
    words += ["--csv-safe"] if csv_safe else []
    return _joined([*words, *_texts(question, subject)])


def _joined(words: Sequence[str]) -> str:
    """A command of these words, quoted; a comment where one of them is too long."""
    longest = max(len(word.encode("utf-8", "surrogatepass")) for word in words)
    if longest > LONGEST_ARGUMENT:
        return (
            f"# A text of {longest:,} bytes cannot be given to a command, whose arguments have at most "
            f"{LONGEST_ARGUMENT:,}; use Python."
        )
    return shlex.join(words)


def _storing(question: Question, subject: InputRecord, taken: str) -> list[str]:
    """The lines that ask a store, beside which a text may be read by its model."""
    lines = [f"store = bert_probe.open_corpus({subject.store['store']!r})"]
    whom = ["store"]
    for text in subject.texts:
        model = ", ".join(_named_arguments(subject.model))
        lines += [f"checkpoint = store.checkpoint({model})", _tracing("trace", "checkpoint", text)]
        whom.append("trace")
    return [*lines, f"bert_probe.{question!r}.of({', '.join(whom)}).{taken}"]


def _stored(question: Question, subject: InputRecord, csv_safe: bool) -> str:
    """The command on a store; one that reads a text as well has an option for it."""
    words = ["bert-probe", *question.command.split(), *question.options()]
    for text in subject.texts:
        words += [
            "--text",
            text["text"],
            *(["--truncate"] if text["tokens_dropped"] else []),
            *_models(subject),
        ]
    words += ["--csv-safe"] if csv_safe else []
    return _joined([*words, *_marked([subject.store["store"], *question.arguments()])])


def _sized(model: Mapping[str, Any]) -> str:
    """The expression that opens a model whose size is asked for, or its config where that was enough."""
    return opening(model) if "weights_sha256" in model else f"bert_probe.open_config({_called(model)!r})"


def _called(config: Mapping[str, Any]) -> str:
    """The name by which `open_config` finds this very one."""
    at = f"@{config['revision']}" if config["revision"] else ""
    return f"{config['model']}{at}"


def _sizes(question: Question, subject: InputRecord, csv_safe: bool) -> str:
    """The command on sizes of models: configs, then at most one model that was opened."""
    *configs, last = subject.configs
    configs, opened = (configs, last) if "weights_sha256" in last else ([*configs, last], None)
    if any("weights_sha256" in config for config in configs):
        return "# The command line puts one opened model after the configs; use Python."
    words = ["bert-probe", question.command]
    words += [word for config in configs for word in ("--config", _called(config))]
    if opened is not None:
        words += ["--model", opened["model"]]
        words += ["--revision", opened["revision"]] if opened["revision"] else []
        words += ["--dtype", opened["dtype"]] if opened["dtype"] != "float32" else []
    return shlex.join([*words, *(["--csv-safe"] if csv_safe else [])])


def http(question: Question, subject: InputRecord, at: str = AT) -> str:
    """The request, for curl; a comment where there is none, and above it where files belong into the body.

    Such a body names them: what is in a file goes beside its name, as "content".

    Args:
        at: where the app is.
    """
    if subject.store:
        return "# A store is asked where it lies; use Python or the command line."
    if any(model.get("origin") in ("given", "in memory") for model in subject.models):
        return "# What is only in memory cannot be reached over HTTP; use Python."
    if any(model.get("dtype", "float32") != "float32" for model in subject.models):
        return "# The app computes in float32; use Python."
    given = body(question, subject)
    written = json.dumps(given, ensure_ascii=False)
    longest = len(written.encode("utf-8", "surrogatepass"))
    if longest > LONGEST_ARGUMENT:
        return (
            f"# A body of {longest:,} bytes cannot be given to a command, whose arguments have at most "
            f"{LONGEST_ARGUMENT:,}; use Python."
        )
    files = [*given.get("files", {}).values(), *filter(None, [given.get("sentences")])]
    names = ", ".join(dict.fromkeys(file["file"] for file in files))
    note = [f'# Put what is in {names} beside its name, as "content".'] if names else []
    line = shlex.join(["curl", f"{at}/api/v1/{name_of(question.analysis)}", "--json", written])
    return "\n".join([*note, line])


def name_of(analysis: str) -> str:
    """An analysis in an address: small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", analysis.lower()).strip("-")


def body(question: Question, subject: InputRecord) -> dict[str, Any]:
    """What is sent to be asked the same, spelled as provenance is."""
    given: dict[str, Any] = _model(subject.model)
    given |= {"other_model": _model(subject.other)} if subject.other else {}
    texts = [text["text"] if text["pair"] is None else _paired(text) for text in subject.texts]
    if len(texts) == 1:
        given |= _paired(subject.texts[0])
    elif texts:
        given["texts"] = texts
    if "files" in subject.sentences:
        files = subject.sentences["files"].items()
        told = {name: {key: one[key] for key in ("file", "kind") if key in one} for name, one in files}
        given["files"] = told
    elif subject.sentences:
        given["sentences"] = {"file": SENTENCES_FILE}
    cut = any(text["tokens_dropped"] for text in subject.texts) or subject.sentences.get("tokens_dropped")
    given |= {"truncate": True} if cut else {}
    said = question.said()
    return {**given, **({"question": said} if said else {})}


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    given = {"model": named(model), "revision": model.get("revision")}
    return {name: value for name, value in given.items() if value}


def _paired(text: Mapping[str, Any]) -> dict[str, Any]:
    return {name: text[name] for name in ("text", "pair") if text[name] is not None}


def address(subject: InputRecord) -> dict[str, str] | None:
    """Parameters by which the app reads the same with the same model; None for what is in memory only."""
    if any(model.get("origin") in ("given", "in memory") for model in subject.models):
        return None
    texts = [str(text["text"]) for text in subject.texts]
    pair = next((text["pair"] for text in subject.texts if text["pair"] is not None), None)
    given = dict(zip("ab", texts if pair is None else [*texts, pair], strict=False))
    given |= {"relation": "pair"} if pair is not None else {}
    model = {"model": named(subject.model), "revision": subject.model.get("revision")}
    given |= {name: value for name, value in model.items() if value}
    return given | ({"truncate": "1"} if any(text["tokens_dropped"] for text in subject.texts) else {})


def _models(subject: InputRecord) -> list[str]:
    """The options that name the model; of two only their revisions, as they stand before the text."""
    options: list[str] = []
    if subject.other:
        sides = zip(("--revision-a", "--revision-b"), subject.models, strict=True)
        given = [(option, one.get("revision")) for option, one in sides]
    else:
        given = [("--model", named(subject.model)), ("--revision", subject.model.get("revision"))]
    for option, value in given:
        options += [option, value] if value else []
    return options


def _texts(question: Question, subject: InputRecord) -> list[str]:
    """Texts come last, after a mark that ends the options where one of them begins like an option."""
    models = [str(model["model"]) for model in subject.models] if subject.other else []
    if "files" in subject.sentences:
        files = subject.sentences["files"].items()
        parted = [
            ([question.files[name]] if name in question.files else [], one["file"]) for name, one in files
        ]
        return [word for option, file in parted for word in (*option, file)]
    if subject.sentences:
        return [*question.arguments(), SENTENCES_FILE, *_marked(models)]
    options: list[str] = []
    words = [*models, *question.arguments()]
    for number, text in enumerate(subject.texts):
        option = question.listed or (question.second if number else "")
        pair = question.pair_options[number] if question.pair_options else "--pair"
        options += [pair, text["pair"]] if text["pair"] is not None else []
        options += [option, text["text"]] if option else []
        words += [] if option else [text["text"]]
    return [*options, *_marked(words)]


def _marked(words: list[str]) -> list[str]:
    return ["--", *words] if any(word.startswith("-") for word in words) else words


def _reading(file: Mapping[str, Any]) -> str:
    """The call that reads a file of labelled texts, or of tagged sentences."""
    if "kind" in file:
        return f"read_labeled_texts({file['file']!r}, {file['kind']!r})"
    return f"read_tagged_sentences({file['file']!r})"


def named(model: Mapping[str, Any]) -> str | None:
    """The name that opens it; None for the built-in."""
    name: str | None = model.get("model")
    return None if name == BUILT_IN else name


def _named_arguments(model: Mapping[str, Any]) -> list[str]:
    """Return the Python arguments that name a model; none for the built-in."""
    revision = [f"revision={model['revision']!r}"] if model.get("revision") else []
    return [repr(named(model)), *revision] if named(model) else revision


def opening(model: Mapping[str, Any], name: str = "model") -> str:
    """The Python expression that opens it; ``name`` stands for one in memory."""
    if model.get("origin") == "in memory":
        return f"bert_probe.wrap({name}, tokenizer)"
    given = _named_arguments(model)
    given += [f"dtype={model['dtype']!r}"] if model.get("dtype", "float32") != "float32" else []
    return f"bert_probe.load({', '.join(given)})"


def _tracing_all(texts: Sequence[Mapping[str, Any]]) -> str:
    pairs = [(text["text"], text["pair"]) for text in texts]
    given = [repr([text if pair is None else (text, pair) for text, pair in pairs])]
    given += ["truncate=True"] if any(text["tokens_dropped"] for text in texts) else []
    return f"traces = checkpoint.traces({', '.join(given)})"


def _tracing(name: str, checkpoint: str, text: Mapping[str, Any]) -> str:
    given = [repr(text["text"])]
    given += [repr(text["pair"])] if text["pair"] is not None else []
    given += ["truncate=True"] if text["tokens_dropped"] else []
    return f"{name} = {checkpoint}.trace({', '.join(given)})"
