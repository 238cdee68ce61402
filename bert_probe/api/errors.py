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

MEDIA: Final = "application/problem+json"
MOST_DETAIL: Final = 2_000
"""Characters of a sentence on what was given."""
PAGE: Final = "/api"
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


NO_JSON = ProblemType("no-json", 400, "The body is not what this question takes")
NO_TOKEN = ProblemType("no-token", 401, "A token is needed")
NOT_FROM_HERE = ProblemType("not-from-here", 403, "This is answered to this machine alone")
NO_SUCH_THING = ProblemType("no-such-thing", 404, "There is nothing at this address")
WRONG_METHOD = ProblemType("wrong-method", 405, "Another method is needed")
NO_SUCH_FORM = ProblemType("no-such-form", 406, "The answer cannot be had in this form")
LATE_BODY = ProblemType("late-body", 408, "The body did not arrive in time")
TOO_LARGE = ProblemType("too-large", 413, "Larger than what is taken or sent")
WRONG_MEDIA = ProblemType("wrong-media", 415, "The body is to be JSON")
MODEL = ProblemType("model", 422, "The model cannot be opened")
TEXT = ProblemType("text", 422, "A text cannot be read")
SELECTION = ProblemType("selection", 422, "The model or the text has no such thing")
UNAVAILABLE = ProblemType("unavailable", 422, "The model does not have what was asked for")
FAILED = ProblemType("failed", 500, "This could not be answered")
BUSY = ProblemType("busy", 503, "Too many ask at once")
NOT_READY = ProblemType("not-ready", 503, "The built-in model is not open yet")
TOO_LONG = ProblemType("took-too-long", 504, "The answer took too long")

KINDS: Final = (
    NO_JSON,
    NO_TOKEN,
    NOT_FROM_HERE,
    NO_SUCH_THING,
    WRONG_METHOD,
    NO_SUCH_FORM,
    LATE_BODY,
    TOO_LARGE,
    WRONG_MEDIA,
    MODEL,
    TEXT,
    SELECTION,
    UNAVAILABLE,
    FAILED,
    BUSY,
    NOT_READY,
    TOO_LONG,
)

_OF_ERRORS: Final[Mapping[type[BaseException], ProblemType]] = {
    BodyError: NO_JSON,
    NotAcceptableError: NO_SUCH_FORM,
    ExportError: NO_SUCH_FORM,
    TooLargeError: TOO_LARGE,
    OutOfMemoryError: TOO_LARGE,
    CheckpointError: MODEL,
    TextError: TEXT,
    SelectionError: SELECTION,
    SubjectError: SELECTION,
    ShapeError: SELECTION,
    UnavailableError: UNAVAILABLE,
    StalledError: TOO_LONG,
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
        record = {"type": f"{PAGE}#{kind.name}", "title": kind.title, "status": kind.status}
        text = json.dumps({**record, "detail": self.detail, **self.more}, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace")


def of(error: BaseException) -> Problem | None:
    """What an error is to whoever asked; None for one that nobody foresaw."""
    if isinstance(error, MemoryError) and not isinstance(error, ProbeError):
        return Problem(TOO_LARGE, "The machine has too little memory for this. Ask for less.")
    if isinstance(error, RecursionError):
        return Problem(NO_JSON, "Lists of the body lie within each other too deep. Send it flatter.")
    for cls in type(error).__mro__:
        if cls in _OF_ERRORS:
            return Problem(_OF_ERRORS[cls], _shortened(str(error)), _faults(error))
    return None


def _shortened(sentence: str) -> str:
    """A sentence that repeats what was given, which may be megabytes; its end is the remedy."""
    half = MOST_DETAIL // 2
    return sentence if len(sentence) <= MOST_DETAIL else f"{sentence[:half]} … {sentence[-half:]}"


def _faults(error: BaseException) -> dict[str, Any]:
    if not isinstance(error, InvalidFileError) or not error.faults:
        return {}
    listed = [{"line": line, "fault": fault} for line, fault in error.faults]
    return {"faults": listed, "count": error.count}
