"""The API as an OpenAPI 3.1 document."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any, Final

from bert_probe.api import errors, schema
from bert_probe.api.errors import MEDIA_TYPE, ProblemType
from bert_probe.api.formats import FORMATS, JSON
from bert_probe.api.registry import RegisteredQuestion, registered_questions

_DESCRIPTION: Final = (
    "The questions of BERT Probe about texts and models. Layers and heads count from 1, tokens from 0. "
    "Models are opened by folder or hub id, as on the pages. Texts stay on the computer that runs the app."
)
_QUESTION_PROBLEMS: Final = tuple(
    kind for kind in errors.PROBLEM_TYPES if kind not in (errors.NOT_FOUND, errors.NOT_READY)
)
_METRICS_PROBLEMS: Final = (errors.TOKEN_REQUIRED, errors.LOCAL_ONLY, errors.METHOD_NOT_ALLOWED)
_TEXT: Final = "text/plain"


@cache
def document(version: str) -> dict[str, Any]:
    """Return the document as JSON-compatible data."""
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
                "get": _monitoring_operation("Whether the app responds.", "The app responds.", JSON)
            },
            "/readyz": {
                "get": _monitoring_operation(
                    "Whether the built-in model is open; a request starts opening it.",
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
            "schemas": {"Table": schema.TABLE, "Problem": schema.PROBLEM},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Required from other computers than the one that runs the app.",
                }
            },
        },
    }


def _question_operation(question: RegisteredQuestion) -> dict[str, Any]:
    contents: dict[str, Any] = {media: {} for media in FORMATS}  # binary, except for two of them
    contents["text/csv"] = {"schema": {"type": "string"}}
    contents[JSON] = {"schema": {"$ref": "#/components/schemas/Table"}}
    return {
        "operationId": question.name,
        "summary": question.question.analysis,
        "description": question.summary,
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": schema.body_schema(question), "example": schema.example(question)}},
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
    """Return status → response; problem types with the same status share one."""
    titles_by_status: dict[str, list[str]] = {}
    for kind in kinds:
        titles_by_status.setdefault(str(kind.status), []).append(kind.title)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": f"{'; '.join(titles)}.", "content": content}
        for status, titles in titles_by_status.items()
    }
