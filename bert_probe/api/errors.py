"""What could not be answered, as RFC 9457 has it: a kind of problem, and a sentence on this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bert_probe.errors import (
    CheckpointError,
    ExportError,
    InvalidFileError,
    OutOfMemoryError,
    ProbeError,
    SelectionError,
    ShapeError,
    StalledError,
    SubjectError,
    TextError,
    UnavailableError,
)

MEDIA_TYPE: Final = "application/problem+json"
MAX_DETAIL_LENGTH: Final = 2_000
"""Characters of a sentence on what was given."""
API_PAGE: Final = "/api"
"""Where kinds of problems are told, each under its name."""


class BodyError(ProbeError):
    """What was sent is no body of the API; it says where."""


class NotAcceptableError(ProbeError):
    """No form that is asked for can be had."""


class TooLargeError(ProbeError):
    """More than is taken or sent."""


@dataclass(frozen=True)
class ProblemType:
    """A kind of problem.

    Attributes:
        name: in the address that its type is.
        status: of HTTP.
        title: what it is, whatever was sent.
    """

    name: str
    status: int
    title: str


INVALID_BODY = ProblemType("no-json", 400, "The body is not what this question takes")
TOKEN_REQUIRED = ProblemType("no-token", 401, "A token is needed")
LOCAL_ONLY = ProblemType("not-from-here", 403, "This is answered to this machine alone")
NOT_FOUND = ProblemType("no-such-thing", 404, "There is nothing at this address")
METHOD_NOT_ALLOWED = ProblemType("wrong-method", 405, "Another method is needed")
NOT_ACCEPTABLE = ProblemType("no-such-form", 406, "The answer cannot be had in this form")
BODY_TIMEOUT = ProblemType("late-body", 408, "The body did not arrive in time")
TOO_LARGE = ProblemType("too-large", 413, "Larger than what is taken or sent")
UNSUPPORTED_MEDIA_TYPE = ProblemType("wrong-media", 415, "The body is to be JSON")
INVALID_MODEL = ProblemType("model", 422, "The model cannot be opened")
INVALID_TEXT = ProblemType("text", 422, "A text cannot be read")
INVALID_SELECTION = ProblemType("selection", 422, "The model or the text has no such thing")
UNAVAILABLE = ProblemType("unavailable", 422, "The model does not have what was asked for")
INTERNAL_ERROR = ProblemType("failed", 500, "This could not be answered")
BUSY = ProblemType("busy", 503, "Too many ask at once")
NOT_READY = ProblemType("not-ready", 503, "The built-in model is not open yet")
ANSWER_TIMEOUT = ProblemType("took-too-long", 504, "The answer took too long")

PROBLEM_TYPES: Final = (
    INVALID_BODY,
    TOKEN_REQUIRED,
    LOCAL_ONLY,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    BODY_TIMEOUT,
    TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    INVALID_MODEL,
    INVALID_TEXT,
    INVALID_SELECTION,
    UNAVAILABLE,
    INTERNAL_ERROR,
    BUSY,
    NOT_READY,
    ANSWER_TIMEOUT,
)

_TYPES_OF_ERRORS: Final[Mapping[type[BaseException], ProblemType]] = {
    BodyError: INVALID_BODY,
    NotAcceptableError: NOT_ACCEPTABLE,
    ExportError: NOT_ACCEPTABLE,
    TooLargeError: TOO_LARGE,
    OutOfMemoryError: TOO_LARGE,
    CheckpointError: INVALID_MODEL,
    TextError: INVALID_TEXT,
    SelectionError: INVALID_SELECTION,
    SubjectError: INVALID_SELECTION,
    ShapeError: INVALID_SELECTION,
    UnavailableError: UNAVAILABLE,
    StalledError: ANSWER_TIMEOUT,
}


@dataclass(frozen=True)
class Problem:
    """A problem that somebody has.

    Attributes:
        detail: a sentence on what was given, the limit, the remedy.
        more: further members; headers: of the answer.
    """

    kind: ProblemType
    detail: str
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """It as JSON."""
        kind = self.kind
        record = {"type": f"{API_PAGE}#{kind.name}", "title": kind.title, "status": kind.status}
        text = json.dumps({**record, "detail": self.detail, **self.more}, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")


def problem_for(error: BaseException) -> Problem | None:
    """What an error is to whoever asked; None for one that nobody foresaw."""
    if isinstance(error, MemoryError) and not isinstance(error, ProbeError):
        return Problem(TOO_LARGE, "The machine has too little memory for this. Ask for less.")
    if isinstance(error, RecursionError):
        return Problem(INVALID_BODY, "Lists of the body lie within each other too deep. Send it flatter.")
    for cls in type(error).__mro__:
        if cls in _TYPES_OF_ERRORS:
            return Problem(_TYPES_OF_ERRORS[cls], _shorten(str(error)), _faults(error))
    return None


def _shorten(sentence: str) -> str:
    """A sentence that repeats what was given, which may be megabytes; its end is the remedy."""
    half = MAX_DETAIL_LENGTH // 2
    return sentence if len(sentence) <= MAX_DETAIL_LENGTH else f"{sentence[:half]} … {sentence[-half:]}"


def _faults(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, InvalidFileError) or not error.faults:
        return {}
    listed = [{"line": line, "fault": fault} for line, fault in error.faults]
    return {"faults": listed, "count": error.count}
