"""Bodies and answers as JSON Schema 2020-12, made of the fields of the questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final

from bert_probe.analyses.attention.find_heads import WordPairs
from bert_probe.api import body, limits
from bert_probe.api.registry import RegisteredQuestion
from bert_probe.core.field_types import FieldType, Schema
from bert_probe.core.field_types_of_lists import HeadSet, ListOf
from bert_probe.core.field_types_of_words import TokenSelector
from bert_probe.core.question import field_type
from bert_probe.model.lengths import MAX_CHARACTERS
from bert_probe.text.labeled_texts import KINDS

TEXT: Final = "The small boat crosses the wide river at night."
OTHER_TEXT: Final = "The small boat crosses the wide valley at dawn."
_TREEBANK: Final = "1\tBoats\tboat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsink\tsink\tVERB\t_\t_\t0\troot\t_\t_\n\n"

_EXAMPLES: Final[Mapping[type, Any]] = {
    HeadSet: ["1.1"],
    WordPairs: [["river", "boat"]],
    ListOf: ["boat"],
    TokenSelector: "boat",
    FieldType: "boat",
}
"""Kind of a field that must be given → what could be given for `TEXT`."""

_COMMAND_LINE_HELP: Final = re.compile(r"\s*\[default: [^\]]*\]|^With --[^:]*: ")
"""What only the command line's help has to say."""


def question_schema(served: RegisteredQuestion) -> Schema:
    """The fields of a question; what is left out is as usual."""
    properties: dict[str, Any] = {"analysis": {"const": served.question.analysis}}
    needed = []
    for field in fields(served.question):
        properties[field.name] = (
            _field_schema(field) if field.name not in served.file_fields else {"type": "null"}
        )
        needed += [field.name] if field.default is MISSING else []
    return _object_schema(properties, needed)


def _field_schema(one: Field[Any]) -> Schema:
    kind, about = field_type(one), _COMMAND_LINE_HELP.sub("", one.metadata["about"])
    if one.default is True and about:
        about = f"If false: {about[0].lower()}{about[1:]}"  # of the option that says no
    about = about[:1].upper() + about[1:]
    usual = {} if one.default is MISSING else {"default": kind.to_json(one.default)}
    return {**kind.schema, **usual, **({"description": about} if about else {})}


def body_schema(served: RegisteredQuestion) -> Schema:
    """The body of a question."""
    least, most = served.inputs.texts
    every = _member_schemas(served)
    properties = {name: every[name] for name in body.allowed_members(served)}
    needed = ["question"] if question_schema(served).get("required") else []
    needed += ["other_model"] if served.inputs.models > 1 else []
    needed += ["sentences"] if served.inputs.has_sentences and not served.inputs.files else []
    needed += ["files"] if any(file.is_required for file in served.inputs.files.values()) else []
    if most == 0 or least != 1:
        needed += ["texts"] if most != 0 else []
        return _object_schema(properties, needed)
    if most == 1:
        return _object_schema(properties, [*needed, "text"])
    # One text, which may have a pair, or a list of them.
    alone = dict.fromkeys(("text", "pair"), False)
    either = [
        {"required": ["text"], "properties": {"texts": False}},
        {"required": ["texts"], "properties": alone},
    ]
    return {**_object_schema(properties, needed), "oneOf": either}


def _member_schemas(served: RegisteredQuestion) -> dict[str, Schema]:
    least, most = served.inputs.texts
    one = {
        "anyOf": [
            _text_schema("A text."),
            _object_schema({"text": _text_schema(), "pair": _pair_schema()}, ["text"]),
        ]
    }
    listed = _list_schema(one, max(1, least), limits.MAX_TEXTS if most is None else most)
    sentence = _list_schema(_text_schema(), 0, limits.MAX_SENTENCES)
    return {
        "question": question_schema(served),
        "model": _name_schema("Folder or hub id of the model; the built-in one unless given."),
        "revision": _name_schema("Branch, tag or commit on the hub; the newest unless given."),
        "other_model": {
            **_object_schema(
                {"model": _name_schema("Folder or hub id."), "revision": _name_schema("On the hub.")}
            ),
            "description": "The second of the two models that are compared.",
        },
        "text": _text_schema("What the model reads."),
        "pair": _pair_schema(),
        "texts": {**listed, "description": "Texts, each read by itself; one with a pair is an object."},
        "sentences": {
            "anyOf": [sentence, _file_schema("One a line, or a table with a header.")],
            "description": "Sentences, each read by itself.",
        },
        "files": _object_schema(
            {
                name: _file_schema("CoNLL, CoNLL-U, or a table with labels.", labelled=True)
                for name in served.inputs.files
            },
            [name for name, file in served.inputs.files.items() if file.is_required],
        ),
        "truncate": {"type": "boolean", "default": False, "description": "Cut what is too long."},
    }


def _text_schema(about: str = "", most: int = MAX_CHARACTERS) -> Schema:
    return {"type": "string", "maxLength": most, **({"description": about} if about else {})}


def _name_schema(about: str) -> Schema:
    named = _text_schema(most=limits.MAX_NAME_LENGTH)
    return {"anyOf": [named, {"type": "null"}], "default": None, "description": about}


def _pair_schema() -> Schema:
    about = "A second text of the same input, after [SEP]."
    return {"anyOf": [_text_schema(), {"type": "null"}], "default": None, "description": about}


def _list_schema(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _file_schema(about: str, labelled: bool = False) -> Schema:
    kind = {"enum": [*KINDS, None], "default": None, "description": "Of the labels of a table."}
    content = _text_schema("What is in it.", limits.MAX_BODY_BYTES)
    named = _text_schema("Its name; the ending says what it is.", limits.MAX_NAME_LENGTH)
    properties = {"file": named, "content": content, **({"kind": kind} if labelled else {})}
    return {**_object_schema(properties, ["file", "content"]), "description": about}


def _object_schema(properties: Mapping[str, Any], needed: list[str] | None = None) -> Schema:
    required = {"required": needed} if needed else {}
    return {"type": "object", "properties": dict(properties), **required, "additionalProperties": False}


def example(served: RegisteredQuestion) -> dict[str, Any]:
    """A body that a question takes."""
    _, most = served.inputs.texts
    asked = {
        field.name: next(given for kind, given in _EXAMPLES.items() if isinstance(field_type(field), kind))
        for field in fields(served.question)
        if field.default is MISSING
    }
    given: dict[str, Any] = {"question": asked} if asked else {}
    given |= {"other_model": {"model": None}} if served.inputs.models > 1 else {}
    if most == 1:
        given["text"] = TEXT
    elif most != 0:
        given["texts"] = [TEXT, OTHER_TEXT]
    given |= (
        {"sentences": [TEXT, OTHER_TEXT, "Nobody can read a map at night."]}
        if served.inputs.has_sentences
        else {}
    )
    if any(file.is_required for file in served.inputs.files.values()):
        file = {"file": "sentences.conllu", "content": _TREEBANK}
        given["files"] = {name: file for name, about in served.inputs.files.items() if about.is_required}
    return given


_CELL: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}

TABLE: Final[Schema] = {
    "type": "object",
    "required": ["provenance", "columns"],
    "properties": {
        "provenance": {
            "type": "object",
            "description": "Model, digest of its weights, libraries, texts, and what was asked.",
            "required": ["model", "question"],
        },
        "columns": {
            "type": "object",
            "description": "The table: name of a column → its cells, from the first row to the last.",
            "additionalProperties": {"type": "array", "items": _CELL},
        },
    },
}
"""An answer in JSON."""

PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference", "description": "Which kind of problem."},
        "title": {"type": "string", "description": "What kind it is, in words."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "What was given, the limit, the remedy."},
        "faults": {
            "type": "array",
            "items": {"type": "object"},
            "description": "Of a file, each with its line.",
        },
        "count": {"type": "integer", "description": "How many faults there are."},
    },
}
"""What could not be answered (RFC 9457)."""
