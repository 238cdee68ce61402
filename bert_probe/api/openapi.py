"""The whole API as OpenAPI 3.1."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any, Final

from bert_probe.api import errors, schema
from bert_probe.api.errors import MEDIA_TYPE, ProblemType
from bert_probe.api.formats import FORMATS, JSON
from bert_probe.api.registry import RegisteredQuestion, registered_questions

_DESCRIPTION: Final = (
    "Every question of BERT Probe, asked of texts and models. Layers and heads count from 1, tokens from 0. "
    "Models are opened by folder or hub id, as on the pages; texts stay on the machine that answers."
)
_QUESTION_PROBLEMS: Final = tuple(
    kind for kind in errors.PROBLEM_TYPES if kind not in (errors.NOT_FOUND, errors.NOT_READY)
)
_METRICS_PROBLEMS: Final = (errors.TOKEN_REQUIRED, errors.LOCAL_ONLY, errors.METHOD_NOT_ALLOWED)
_TEXT: Final = "text/plain"


@cache
def document(version: str) -> dict[str, Any]:
    """It as JSON has it."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "BERT Probe", "version": version, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": {
            f"/api/v1/{name}": {"post": _question_operation(one)}
            for name, one in registered_questions().items()
        }
        | {
            "/healthz": {
                "get": _monitoring_operation("Whether the app answers at all.", "The app answers.", JSON)
            },
            "/readyz": {
                "get": _monitoring_operation(
                    "Whether the built-in model is open; asking begins to open it.",
                    "It is open.",
                    JSON,
                    (errors.NOT_READY, errors.METHOD_NOT_ALLOWED),
                )
            },
            "/metrics": {
                "get": _monitoring_operation(
                    "Passes, waits, caches, memory, for Prometheus.", "The numbers.", _TEXT, _METRICS_PROBLEMS
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
                    "description": "Needed from other machines than the one that answers.",
                }
            },
        },
    }


def _question_operation(one: RegisteredQuestion) -> dict[str, Any]:
    contents: dict[str, Any] = {media: {} for media in FORMATS}  # bytes, but for two of them
    contents["text/csv"] = {"schema": {"type": "string"}}
    contents[JSON] = {"schema": {"$ref": "#/components/schemas/Table"}}
    return {
        "operationId": one.name,
        "summary": one.question.analysis,
        "description": one.summary,
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": schema.body_schema(one), "example": schema.example(one)}},
        },
        "responses": {
            "200": {"description": "The table.", "content": contents},
            **_problem_responses(_QUESTION_PROBLEMS),
        },
    }


def _monitoring_operation(
    about: str, fine: str, media: str, kinds: tuple[ProblemType, ...] = (errors.METHOD_NOT_ALLOWED,)
) -> dict[str, Any]:
    held = {"type": "object"} if media == JSON else {"type": "string"}
    answer = {"description": fine, "content": {media: {"schema": held}}}
    return {"summary": about, "responses": {"200": answer, **_problem_responses(kinds)}}


def _problem_responses(kinds: tuple[ProblemType, ...]) -> dict[str, Any]:
    """Status → what it says; several kinds may have one."""
    told: dict[str, list[str]] = {}
    for kind in kinds:
        told.setdefault(str(kind.status), []).append(kind.title)
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": f"{'; '.join(titles)}.", "content": content}
        for status, titles in told.items()
    }
