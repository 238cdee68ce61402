"""JSON Schemas (2020-12) of request bodies and responses, derived from the fields of the questions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from functools import cache
from typing import Any, Final

from bert_probe.analyses.attention.find_heads import WordPairs
from bert_probe.api import body, errors
from bert_probe.api.body import FORMATS, JSON
from bert_probe.api.errors import MEDIA_TYPE, ProblemType
from bert_probe.api.registry import RegisteredQuestion, registered_questions
from bert_probe.core.field_types import FieldType, Schema, TokenSelector
from bert_probe.core.field_types_of_lists import HeadSet, ListOf
from bert_probe.core.inputs import TABLE as LABEL_TABLE
from bert_probe.core.question import field_type
from bert_probe.model.lengths import MAX_CHARACTERS
from bert_probe.runtime import permissions
from bert_probe.runtime.permissions import Permissions
from bert_probe.text.labeled_texts import KINDS

TEXT: Final = "The small boat crosses the wide river at night."
OTHER_TEXT: Final = "The small boat crosses the wide valley at dawn."
_TREEBANK: Final = "".join(
    f"1\t{noun}\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\t{verb}\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    for noun, verb in (("Boats", "sink"), ("Birds", "sing"), ("Rivers", "rise"), ("Children", "play"))
)
_TREEBANK_FILE: Final = ("sentences.conllu", _TREEBANK)
_DOCUMENTS: Final = "".join(
    json.dumps({"_id": name, "text": text}) + "\n" for name, text in (("1", TEXT), ("2", OTHER_TEXT))
)
_TEXT_TABLE: Final = "text,label\nA boat,ship\nA ferry,ship\nA car,vehicle\nA bus,vehicle\n"
_PAIR_TABLE: Final = "text_a,text_b,label\nA boat,A ship,1\nA car,A bus,1\nA boat,A map,0\nA car,A song,0\n"

_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "texts": ("texts.csv", _TEXT_TABLE),
    "pairs": ("pairs.csv", _PAIR_TABLE),
    "documents": ("documents.jsonl", _DOCUMENTS),
    "queries": ("queries.jsonl", json.dumps({"_id": "q", "text": "When does the boat cross?"}) + "\n"),
    "judgments": ("judgments.tsv", "query-id\tcorpus-id\tscore\nq\t1\t1\n"),
}
"""Argument → name and content of an example file; the other arguments are treebanks."""
_MEMBERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "answer-change": {"pair": OTHER_TEXT},
    "fill-mask": {"text": "A small boat [MASK] the wide river."},
    "head-pruning": {"sentences": ["LABEL_0\tA boat sinks.", "LABEL_1\tA ship sails."]},
    "next-sentence-prediction": {"pair": OTHER_TEXT},
    "question-answering": {"pair": OTHER_TEXT},
    "faithfulness-summary": {"sentences": ["A boat sinks.\tA ship sinks."]},
    "similarity-attribution": {"question": {"steps": 4}, "texts": ["A boat sinks.", "A ship sinks."]},
}
"""Question → members of the example body: two sentences for the built-in model, or a short computation."""

_EXAMPLES: Final[Mapping[type, Any]] = {
    HeadSet: ["1.1"],
    WordPairs: [["river", "boat"]],
    ListOf: ["boat"],
    TokenSelector: "boat",
    FieldType: "boat",
}
"""Type of a required field → an example value that fits the example text `TEXT`."""

_COMMAND_LINE_HELP: Final = re.compile(r"\s*\[default: [^\]]*\]|^With --[^:]*: ")
"""Matches the parts of a help text that apply only to the command line."""


def question_schema(registered: RegisteredQuestion) -> Schema:
    """Return the schema of a question's fields."""
    properties: dict[str, Any] = {"analysis": {"const": registered.question.analysis}}
    required = []
    for field in fields(registered.question):
        properties[field.name] = (
            _field_schema(field) if field.name not in registered.file_fields else {"type": "null"}
        )
        required += [field.name] if field.default is MISSING else []
    return _object_schema(properties, required)


def _field_schema(field: Field[Any]) -> Schema:
    kind, description = field_type(field), _COMMAND_LINE_HELP.sub("", field.metadata["about"])
    if field.default is True and description:
        # The help text describes the command-line option, which sets the field to False.
        description = f"If false: {description[0].lower()}{description[1:]}"
    description = description[:1].upper() + description[1:]
    default = {} if field.default is MISSING else {"default": kind.to_json(field.default)}
    return {**kind.schema, **default, **({"description": description} if description else {})}


def body_schema(registered: RegisteredQuestion) -> Schema:
    """Return the schema of a question's request body."""
    inputs = registered.inputs
    min_texts, max_texts = inputs.texts
    members = _member_schemas(registered)
    properties = {name: members[name] for name in body.allowed_members(registered)}
    required = ["question"] if question_schema(registered).get("required") else []
    required += ["other_model"] if inputs.models > 1 else []
    required += [inputs.list_name] if inputs.has_sentences and not inputs.files else []
    required += ["files"] if any(file.is_required for file in inputs.files.values()) else []
    if max_texts == 0 or min_texts != 1:
        required += ["texts"] if max_texts != 0 else []
        return _object_schema(properties, required)
    if max_texts == 1:
        return _object_schema(properties, [*required, "text"])
    # A body has either one text, possibly with a pair, or a list of texts.
    either = [
        {"required": ["text"], "properties": {"texts": False}},
        {"required": ["texts"], "properties": dict.fromkeys(("text", "pair"), False)},
    ]
    return {**_object_schema(properties, required), "oneOf": either}


_LABELED_FILE: Final = "CoNLL, CoNLL-U, or a table of labeled texts."


def _member_schemas(registered: RegisteredQuestion) -> dict[str, Schema]:
    min_texts, max_texts = registered.inputs.texts
    text = {
        "anyOf": [
            _text_schema("A text."),
            _object_schema({"text": _text_schema(), "pair": _pair_schema()}, ["text"]),
        ]
    }
    texts = _list_schema(text, max(1, min_texts), permissions.MAX_TEXTS if max_texts is None else max_texts)
    name = registered.inputs.list_name
    sentences = _list_schema(_text_schema(), 0, permissions.MAX_SENTENCES)
    list_file = _file_schema(
        f"A file with one {name[:-1]} per line, or a table with a header."
        if registered.inputs.has_list
        else "JSON lines with the keys vector, id and text.",
        can_skip=registered.inputs.can_skip,
    )
    other = {"model": _model_schema("Folder or Hub ID."), "revision": _name_schema("Revision on the Hub.")}
    return {
        "question": question_schema(registered),
        "model": _model_schema("Folder or Hub ID of the model; by default the built-in model."),
        "revision": _name_schema(
            "Branch, tag or commit on the Hub; by default the newest commit of the main branch."
        ),
        "other_model": {
            **_object_schema({name: other[name] for name in body.model_members()}),
            "description": "The second model of the comparison.",
        },
        "text": _text_schema("The text that the model reads."),
        "pair": _pair_schema(),
        "texts": {
            **texts,
            "description": "Texts, each read separately; a text with a pair is an object.",
        },
        name: {
            "anyOf": [sentences, list_file] if registered.inputs.has_list else [list_file],
            "description": f"{name.capitalize()}, each read separately.",
        },
        "files": _object_schema(
            {
                name: _file_schema(
                    _LABELED_FILE if LABEL_TABLE in file.formats else file.help,
                    has_kind=LABEL_TABLE in file.formats,
                )
                for name, file in registered.inputs.files.items()
            },
            [name for name, file in registered.inputs.files.items() if file.is_required],
        ),
        "truncate": {
            "type": "boolean",
            "default": False,
            "description": "Whether to truncate texts that are too long.",
        },
    }


def _text_schema(description: str = "", max_length: int = MAX_CHARACTERS) -> Schema:
    return {
        "type": "string",
        "maxLength": max_length,
        **({"description": description} if description else {}),
    }


def _name_schema(description: str) -> Schema:
    name = _text_schema(max_length=permissions.MAX_NAME_LENGTH)
    return {"anyOf": [name, {"type": "null"}], "default": None, "description": description}


def _model_schema(description: str) -> Schema:
    """Return the schema of a model's name; on a public server, list the allowed models."""
    models = permissions.current().models
    if not models:
        return _name_schema(description)
    return {"enum": [*models, None], "default": None, "description": "A model of this server."}


def _pair_schema() -> Schema:
    description = "Second text, encoded together with the first text as a sentence pair."
    return {"anyOf": [_text_schema(), {"type": "null"}], "default": None, "description": description}


def _list_schema(items: Schema, min_items: int, max_items: int) -> Schema:
    return {"type": "array", "items": items, "minItems": min_items, "maxItems": max_items}


def _file_schema(description: str, has_kind: bool = False, can_skip: bool = False) -> Schema:
    kind = {"enum": [*KINDS, None], "default": None, "description": "Type of the labels of a table."}
    content = _text_schema("Content of the file.", permissions.MAX_BODY_BYTES)
    name = _text_schema("Name of the file; its extension determines the format.", permissions.MAX_NAME_LENGTH)
    skip = {"type": "boolean", "default": False, "description": "Whether to skip rows that cannot be read."}
    properties = {
        "file": name,
        "content": content,
        **({"kind": kind} if has_kind else {}),
        **({"skip_broken": skip} if can_skip else {}),
    }
    return {**_object_schema(properties, ["file", "content"]), "description": description}


def _object_schema(properties: Mapping[str, Any], required: list[str] | None = None) -> Schema:
    required_names = {"required": required} if required else {}
    return {
        "type": "object",
        "properties": dict(properties),
        **required_names,
        "additionalProperties": False,
    }


def example(registered: RegisteredQuestion) -> dict[str, Any]:
    """Return an example request body for a question."""
    _, max_texts = registered.inputs.texts
    question_fields = {
        field.name: next(value for kind, value in _EXAMPLES.items() if isinstance(field_type(field), kind))
        for field in fields(registered.question)
        if field.default is MISSING
    }
    content: dict[str, Any] = {"question": question_fields} if question_fields else {}
    content |= {"other_model": {"model": None}} if registered.inputs.models > 1 else {}
    if max_texts == 1:
        content["text"] = TEXT
    elif max_texts != 0:
        content["texts"] = [TEXT, OTHER_TEXT]
    if registered.inputs.has_sentences and registered.inputs.has_list:
        content[registered.inputs.list_name] = [TEXT, OTHER_TEXT, "The moon is bright. The boat waits."]
    elif registered.inputs.has_sentences:
        file = {"file": registered.inputs.list_file, "content": _VECTORS}
        content[registered.inputs.list_name] = file
    if any(file.is_required for file in registered.inputs.files.values()):
        content["files"] = {
            argument: dict(zip(("file", "content"), _FILES.get(argument, _TREEBANK_FILE), strict=True))
            for argument, file in registered.inputs.files.items()
            if file.is_required
        }
    return {**content, **_MEMBERS.get(registered.name, {})}


_VECTORS: Final = "".join(
    json.dumps({"id": name, "vector": [float(number % step == 0) for number in range(384)]}) + "\n"
    for name, step in (("a", 2), ("b", 3))
)
"""Example file (JSON lines): two vectors with the dimensions of the built-in model."""
_CELL: Final[Schema] = {"type": ["string", "number", "boolean", "null"]}

TABLE: Final[Schema] = {
    "type": "object",
    "required": ["provenance", "columns"],
    "properties": {
        "provenance": {
            "type": "object",
            "description": "The model, the digest of its weights, library versions, texts and question.",
            "required": ["model", "question"],
        },
        "columns": {
            "type": "object",
            "description": "The table: each column name is mapped to the cells of the column, from "
            "the first row to the last.",
            "additionalProperties": {"type": "array", "items": _CELL},
        },
    },
}
"""JSON Schema of a response with a table."""

PROBLEM: Final[Schema] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri-reference",
            "description": "URI that identifies the problem type.",
        },
        "title": {"type": "string", "description": "Short description of the error type."},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {
            "type": "string",
            "description": "A message with the invalid value, the allowed values, and what to do.",
        },
        "faults": {
            "type": "array",
            "items": {"type": "object"},
            "description": "The errors in a file, each with its line number.",
        },
        "count": {"type": "integer", "description": "Total number of errors."},
    },
}
"""JSON Schema of a problem response (RFC 9457)."""


_DESCRIPTION: Final = (
    "The questions of BERT Probe about texts and models. Layers and heads count from 1, tokens from 0. "
    "Models are opened by folder or Hub ID, as on the pages. Texts stay on the computer that runs the app."
)
_QUESTION_PROBLEMS: Final = tuple(
    kind for kind in errors.PROBLEM_TYPES if kind not in (errors.NOT_FOUND, errors.NOT_READY)
)
_METRICS_PROBLEMS: Final = (errors.TOKEN_REQUIRED, errors.LOCAL_ONLY, errors.METHOD_NOT_ALLOWED)
_TEXT: Final = "text/plain"


def document(version: str) -> dict[str, Any]:
    """Return the OpenAPI document as JSON-compatible data."""
    return _document(version, permissions.current())


@cache
def _document(version: str, _permissions: Permissions) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": "BERT Probe", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": {
            f"/api/v1/{name}": {"post": _question_operation(question)}
            for name, question in registered_questions().items()
        }
        | {
            "/healthz": {
                "get": _monitoring_operation("Return whether the app responds.", "The app responds.", JSON)
            },
            "/readyz": {
                "get": _monitoring_operation(
                    "Return whether the built-in model is open; a request starts opening the model.",
                    "The model is open.",
                    JSON,
                    (errors.NOT_READY, errors.METHOD_NOT_ALLOWED),
                )
            },
            "/metrics": {
                "get": _monitoring_operation(
                    "Metrics for Prometheus: queues, caches, memory, requests.",
                    "The metrics.",
                    _TEXT,
                    _METRICS_PROBLEMS,
                )
            },
        },
        "x-problems": [asdict(kind) for kind in errors.PROBLEM_TYPES],
        "components": {
            "schemas": {"Table": TABLE, "Problem": PROBLEM},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Required for requests from other machines.",
                }
            },
        },
    }


def _question_operation(question: RegisteredQuestion) -> dict[str, Any]:
    contents: dict[str, Any] = {media: {} for media in FORMATS}  # binary formats have no schema
    contents["text/csv"] = {"schema": {"type": "string"}}
    contents[JSON] = {"schema": {"$ref": "#/components/schemas/Table"}}
    return {
        "operationId": question.name,
        "summary": question.question.analysis,
        "description": question.summary,
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": body_schema(question), "example": example(question)}},
        },
        "responses": {
            "200": {"description": "The table.", "content": contents},
            **_problem_responses(_QUESTION_PROBLEMS),
        },
    }


def _monitoring_operation(
    summary: str, description: str, media: str, kinds: tuple[ProblemType, ...] = (errors.METHOD_NOT_ALLOWED,)
) -> dict[str, Any]:
    content_schema = {"type": "object"} if media == JSON else {"type": "string"}
    response = {"description": description, "content": {media: {"schema": content_schema}}}
    return {"summary": summary, "responses": {"200": response, **_problem_responses(kinds)}}


def _problem_responses(kinds: tuple[ProblemType, ...]) -> dict[str, Any]:
    """Return the problem responses by HTTP status; problem types with the same status share a response."""
    titles_by_status: dict[str, list[str]] = {}
    for kind in kinds:
        titles_by_status.setdefault(str(kind.status), []).append(kind.title)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": f"{'; '.join(titles)}.", "content": content}
        for status, titles in titles_by_status.items()
    }
