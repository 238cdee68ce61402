"""Problem responses (RFC 9457): a problem type, and a message about the occurrence."""

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
    TooLargeError,
    UnavailableError,
)

MEDIA_TYPE: Final = "application/problem+json"
MAX_DETAIL_LENGTH: Final = 2_000
"""Maximum length of a problem's detail, in characters."""
API_PAGE: Final = "/api"
"""Path of the page that explains the problem types; the name of each type is an anchor."""


class BodyError(ProbeError):
    """Raised when a request body is invalid; the message names the invalid member."""


class NotAcceptableError(ProbeError):
    """Raised when no format that the client accepts is available."""


@dataclass(frozen=True)
class ProblemType:
    """A type of problem that a response reports.

    Attributes:
        name: fragment of the URI that identifies the type.
        status: HTTP status code.
        title: short description, identical for all occurrences.
    """

    name: str
    status: int
    title: str


INVALID_BODY = ProblemType("no-json", 400, "The request body is not valid for this analysis")
TOKEN_REQUIRED = ProblemType("no-token", 401, "A token is required")
LOCAL_ONLY = ProblemType("not-from-here", 403, "Only available from the computer that runs the app")
NOT_FOUND = ProblemType("no-such-thing", 404, "Not found")
METHOD_NOT_ALLOWED = ProblemType("wrong-method", 405, "Method not allowed")
NOT_ACCEPTABLE = ProblemType("no-such-form", 406, "The result is not available in this format")
BODY_TIMEOUT = ProblemType("late-body", 408, "The body did not arrive in time")
TOO_LARGE = ProblemType("too-large", 413, "Too large")
UNSUPPORTED_MEDIA_TYPE = ProblemType("wrong-media", 415, "The body must be JSON")
INVALID_MODEL = ProblemType("model", 422, "The model cannot be opened")
INVALID_TEXT = ProblemType("text", 422, "A text cannot be read")
INVALID_SELECTION = ProblemType("selection", 422, "The model or the text does not contain the selection")
UNAVAILABLE = ProblemType("unavailable", 422, "The model does not support this request")
INTERNAL_ERROR = ProblemType("failed", 500, "Internal error")
BUSY = ProblemType("busy", 503, "Too many requests at once")
NOT_READY = ProblemType("not-ready", 503, "The built-in model is not open yet")
STOPPING = ProblemType("stopping", 503, "The app is stopping")
ANSWER_TIMEOUT = ProblemType("took-too-long", 504, "The computation took too long")

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
    STOPPING,
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
    """One occurrence of a problem.

    Attributes:
        detail: message that states the invalid value, what is allowed and what to do.
        more: additional members of the JSON object.
        headers: headers of the response.
    """

    kind: ProblemType
    detail: str
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes:
        """The problem as the JSON content of a response."""
        kind = self.kind
        record = {"type": f"{API_PAGE}#{kind.name}", "title": kind.title, "status": kind.status}
        text = json.dumps({**record, "detail": self.detail, **self.more}, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")


def problem_for(error: BaseException) -> Problem | None:
    """Return the problem to report for an error, or None for an unexpected error."""
    if isinstance(error, MemoryError) and not isinstance(error, ProbeError):
        return Problem(TOO_LARGE, "Not enough memory. Use a shorter text or fewer texts.")
    if isinstance(error, RecursionError):
        return Problem(INVALID_BODY, "The body is nested too deeply. Use fewer nested arrays and objects.")
    for cls in type(error).__mro__:
        if cls in _TYPES_OF_ERRORS:
            return Problem(_TYPES_OF_ERRORS[cls], _shorten(str(error)), _faults(error))
    return None


def _shorten(sentence: str) -> str:
    """Replace the middle of a long message by an ellipsis, because messages may repeat megabytes of input."""
    half = MAX_DETAIL_LENGTH // 2
    return sentence if len(sentence) <= MAX_DETAIL_LENGTH else f"{sentence[:half]} … {sentence[-half:]}"


def _faults(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, InvalidFileError) or not error.faults:
        return {}
    faults = [{"line": line, "fault": fault} for line, fault in error.faults]
    return {"faults": faults, "count": error.count}
