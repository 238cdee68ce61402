"""Parse and answer request bodies with shared models and caches, and serialize the results.

A body has the same keys as the provenance of its result: `model`, `revision`, `text` and `pair`, or `texts`.
Layers and heads count from 1, tokens from 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from bert_probe.analyses.attention.attention import Attention, AttentionLong
from bert_probe.analyses.attention.measures import get_measure
from bert_probe.api.errors import BodyError, NotAcceptableError
from bert_probe.api.registry import RegisteredQuestion
from bert_probe.core import files
from bert_probe.core.inputs import Inputs, InputValues
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import MAX_CHARACTERS
from bert_probe.model.progress import Progress
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.jobs import SLOTS, Semaphore
from bert_probe.runtime.permissions import (
    MAX_BODY_BYTES,
    MAX_FILE_LINES,
    MAX_LIST_LINES,
    MAX_NAME_LENGTH,
    MAX_SENTENCES,
    MAX_TEXTS,
)
from bert_probe.runtime.tables import limited_table
from bert_probe.text import strict_json
from bert_probe.text.labeled_texts import KINDS
from bert_probe.text.strict_json import DuplicateKeyError

SMALL_CHARACTERS: Final = 500
"""Number of characters of the texts of a request up to which its traces are small."""
LARGE_SLOTS: Final = Semaphore(2)
"""Limits the concurrent requests with larger texts or tables, because of their memory."""

FinishedT = TypeVar("FinishedT")

JSON: Final = "application/json"
FORMATS: Final[Mapping[str, str]] = {
    JSON: "json",
    "text/csv": "csv",
    "application/vnd.apache.parquet": "parquet",
    "application/vnd.apache.arrow.stream": "arrow",
}
"""Media type → file format. All except CSV include the provenance."""


@dataclass(frozen=True)
class BodyFile:
    """An input file in a request body; `kind` is the type of the labels in a table."""

    name: str
    content: bytes
    kind: str | None


@dataclass(frozen=True)
class Body:
    """A validated request.

    Attributes:
        registered: the question to answer.
        question_fields: fields of the question as JSON; layers and heads are checked after the model is
            opened.
        models: name and revision of each model; "" stands for the built-in model and for the newest revision.
        texts: each text with the second text of its sentence pair, which is None for a single text.
        sentences: the sentences of a question about many sentences; otherwise empty.
        files: input files, by name of the argument of the question's method `of`.
        truncate: whether texts that are too long are truncated.
    """

    registered: RegisteredQuestion
    question_fields: Mapping[str, Any]
    models: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str | None], ...]
    sentences: tuple[str, ...]
    files: Mapping[str, BodyFile]
    truncate: bool

    def answer(self, progress: Progress, finish: Callable[[Result], FinishedT]) -> FinishedT:
        """Answer the request, and return what `finish` makes of the result.

        A request that takes long or much memory waits for a slot before its traces are computed, and holds it
        until its result is finished.

        Args:
            progress: called with the number of steps done and the total; an exception from this callback
                cancels the work.
            finish: function that is called with the result, for example to serialize its table.

        Raises:
            ProbeError: the question cannot be answered.
        """
        checkpoints = [shared_cache.open_checkpoint(*model, progress) for model in self.models]
        progress(0, 0)
        question = self.registered.question.from_json(self.question_fields, checkpoints[0].description)

        def check() -> None:
            progress(0, 0)

        slots = self._slots(question)
        with nullcontext() if slots is None else slots.turn(check):
            arguments = self._arguments(checkpoints, check)
            check()
            question.check_limits(*arguments)
            untyped_question: Any = question
            options: dict[str, Any] = {"progress": progress} if self.registered.has_progress else {}
            # Questions about files are not cached, because the rows of files are not hashable.
            # AttentionLong is not cached, because its result would keep the trace in memory.
            if self.files or isinstance(question, AttentionLong):
                result: Result = untyped_question.of(*arguments, **options)
            else:
                result = shared_cache.answers.of(untyped_question.of, *arguments, **options)
            check()
            return finish(result)

    def _slots(self, question: Any) -> Semaphore | None:
        """Return the semaphore that limits requests like this one; None if it is short and small."""
        is_attention = isinstance(question, Attention | AttentionLong)
        if self.registered.has_progress and not (
            is_attention and not get_measure(question.measure).runs_model
        ):
            return SLOTS
        characters = sum(len(text) + len(pair or "") for text, pair in self.texts)
        is_large = characters > SMALL_CHARACTERS or isinstance(question, AttentionLong)
        return LARGE_SLOTS if is_large else None

    def _arguments(self, checkpoints: Sequence[Checkpoint], check: Callable[[], None]) -> list[Any]:
        """Return the positional arguments of the question's method `of`."""
        read = partial(shared_cache.traces, texts=self.texts, truncate=self.truncate, check=check)
        inputs = self.registered.inputs
        if inputs.models > 1:
            traces = [read(checkpoint)[0] for checkpoint in checkpoints if self.texts]
        else:
            traces = read(checkpoints[0]) if self.texts else []
        files = {
            name: inputs.files[name].parse(file.content, file.name, file.kind)
            for name, file in self.files.items()
        }
        return inputs.arguments(InputValues(checkpoints, traces, self.sentences, files, self.truncate))


def parse_json(content: bytes) -> Any:
    """Parse the JSON of a request body.

    Raises:
        BodyError: the body is not JSON, or one of its objects has a duplicate key.
    """
    try:
        # JSON does not distinguish 5.0 from 5, so whole numbers are parsed as integers.
        return strict_json.loads(content, parse_float=_parse_number, parse_constant=_refuse_constant)
    except DuplicateKeyError as error:
        raise BodyError(f"In the body {error}.") from None
    except (ValueError, RecursionError) as error:
        raise BodyError(f"The body is not JSON in UTF-8: {str(error)[:200]}.") from None


def _parse_number(literal: str) -> int | float:
    number = float(literal)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _refuse_constant(literal: str) -> float:
    raise ValueError(f"{literal} is not a number in JSON")


def read_body(registered: RegisteredQuestion, content: Any) -> Body:
    """Validate a request body and return it as a `Body`.

    Args:
        content: the value that `parse_json` returns.

    Raises:
        BodyError: a member is missing, unknown or invalid.
    """
    body = _check_object("The body", content, allowed=allowed_members(registered))
    question_fields = _check_object("question", body.get("question", {}))
    for name in registered.file_fields & question_fields.keys():
        if question_fields[name] is not None:
            raise BodyError(
                f"{name} is the path of a file, which only the command line and Python accept. Omit {name}."
            )
    models = [body]
    if registered.inputs.models > 1:
        _require(body, "other_model")
    if registered.inputs.models > 1 or body.get("other_model") is not None:
        models.append(_check_object("other_model", body["other_model"], allowed=model_members()))
    return Body(
        registered,
        question_fields,
        tuple((_read_model(model), _read_name(model, "revision")) for model in models),
        _read_texts(registered, body),
        _read_list(registered.inputs, body)
        if registered.inputs.has_sentences and "files" not in body
        else (),
        _read_files(registered, body),
        _read_flag(body, "truncate"),
    )


def allowed_members(registered: RegisteredQuestion) -> tuple[str, ...]:
    """Return the names of the allowed members in a question's body."""
    min_texts, max_texts = registered.inputs.texts
    names = ["question", *model_members()]
    has_other = registered.inputs.models > 1 or registered.inputs.has_other
    names += ["other_model"] if has_other else []
    names += ["text", "pair"] if min_texts == 1 else []
    names += ["texts"] if max_texts != min_texts or (max_texts or 0) > 1 else []
    names += [registered.inputs.list_name] if registered.inputs.has_sentences else []
    names += ["files"] if registered.inputs.files else []
    return (*names, *(["truncate"] if registered.inputs.can_truncate else []))


def model_members() -> tuple[str, ...]:
    """Return the members that select a model; on a public server, without the revision."""
    return ("model",) if permissions.current().is_public else ("model", "revision")


def _check_object(where: str, value: Any, allowed: Sequence[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BodyError(f"{where} must be an object, not {_preview(value)}.")
    for name in value:
        if allowed is not None and name not in allowed:
            raise BodyError(
                f"{where} must not have a member {_preview(name)}. Allowed members: {', '.join(allowed)}."
            )
    return value


def _require(body: Mapping[str, Any], name: str) -> None:
    if name not in body:
        raise BodyError(f"The member {name} is missing. Add this member.")


def _check_text(where: str, value: Any, max_length: int = MAX_CHARACTERS) -> str:
    if not isinstance(value, str):
        raise BodyError(f"{where} must be a string, not {_preview(value)}.")
    if len(value) > max_length:
        raise BodyError(f"{where} has {len(value):,} characters. Send at most {max_length:,}.")
    return value


def _read_name(body: Mapping[str, Any], member: str) -> str:
    value = body.get(member)
    return "" if value is None else _check_text(member, value, MAX_NAME_LENGTH)


def _read_model(body: Mapping[str, Any]) -> str:
    return _read_name(body, "model") or permissions.current().default_model


def _check_list(where: str, value: Any, max_length: int) -> Sequence[Any]:
    if not isinstance(value, list):
        raise BodyError(f"{where} must be a list, not {_preview(value)}.")
    if len(value) > max_length:
        raise BodyError(f"{where} has {len(value):,} entries. Send at most {max_length:,}.")
    return value


def _read_texts(
    registered: RegisteredQuestion, body: Mapping[str, Any]
) -> tuple[tuple[str, str | None], ...]:
    min_texts, max_texts = registered.inputs.texts
    if max_texts == 0:
        return ()
    if "texts" not in body:
        _require(body, "text" if min_texts == 1 else "texts")
        return (_read_pair("text", {name: body[name] for name in ("text", "pair") if name in body}),)
    if "text" in body or "pair" in body:
        raise BodyError("The body has texts together with text or pair. Send either texts or text.")
    texts = _check_list("texts", body["texts"], MAX_TEXTS if max_texts is None else max_texts)
    if len(texts) < min_texts:
        raise BodyError(f"texts has {len(texts)} of at least {min_texts} entries. Send more texts.")
    return tuple(_read_pair(f"texts[{number}]", text) for number, text in enumerate(texts))


def _read_pair(where: str, value: Any) -> tuple[str, str | None]:
    if isinstance(value, str):
        return _check_text(where, value), None
    member = _check_object(where, value, allowed=("text", "pair"))
    _require(member, "text")
    pair = member.get("pair")
    return _check_text("text", member["text"]), None if pair is None else _check_text("pair", pair)


def _read_list(inputs: Inputs, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the sentences or documents from a body."""
    name = inputs.list_name
    _require(body, name)
    value = body[name]
    if isinstance(value, list) and inputs.has_list:
        texts = tuple(_check_text(f"{name}[{number}]", text) for number, text in enumerate(value))
    else:
        skip = ("skip_broken",) if inputs.can_skip else ()
        file = _read_file(name, value, MAX_LIST_LINES, allowed=("file", "content", *skip))
        texts = inputs.parse_list(file.content, file.name, _read_flag(value, "skip_broken"))
        if not inputs.has_list:
            return texts
    _check_list(name, list(texts), MAX_SENTENCES)
    return texts


def _read_files(registered: RegisteredQuestion, body: Mapping[str, Any]) -> Mapping[str, BodyFile]:
    if "files" not in body and not any(file.is_required for file in registered.inputs.files.values()):
        return {}
    _require(body, "files")
    files = _check_object("files", body["files"], allowed=tuple(registered.inputs.files))
    for name, file in registered.inputs.files.items():
        if file.is_required and name not in files:
            raise BodyError(f"'files' has no entry {name!r}. Add this entry.")
    return {name: _read_file(name, file, MAX_FILE_LINES) for name, file in files.items()}


def _read_file(
    where: str, value: Any, max_lines: int, allowed: Sequence[str] = ("file", "content", "kind")
) -> BodyFile:
    file = _check_object(where, value, allowed)
    _require(file, "file")
    _require(file, "content")
    kind = file.get("kind")
    if kind is not None and kind not in KINDS:
        raise BodyError(f"kind of {where} must be one of {', '.join(KINDS)}, not {_preview(kind)}.")
    content = _check_text(f"content of {where}", file["content"], MAX_BODY_BYTES)
    lines = max(content.count("\n"), content.count("\r"))
    if lines > max_lines:
        raise BodyError(f"content of {where} has {lines:,} lines. Send at most {max_lines:,}.")
    name = _check_text(f"file of {where}", file["file"], MAX_NAME_LENGTH)
    return BodyFile(name, content.encode("utf-8", "surrogatepass"), kind)


def _read_flag(body: Mapping[str, Any], member: str) -> bool:
    value = body.get(member, False)
    if not isinstance(value, bool):
        raise BodyError(f"{member} must be true or false, not {_preview(value)}.")
    return value


def _preview(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def choose_media_type(accept: str) -> str:
    """Return the available media type that best matches an Accept header; JSON for an empty header.

    Raises:
        NotAcceptableError: no format is acceptable.
    """
    qualities = dict(_parse_media_range(part) for part in accept.split(",") if part.strip())
    if not qualities:
        return JSON
    # If several formats are equally acceptable, `max` returns the first of them.
    best = max(FORMATS, key=lambda media: _quality(qualities, media))
    if not _quality(qualities, best):
        raise NotAcceptableError(
            f"The format {accept[:100]!r} is not available. Accept one of {', '.join(FORMATS)}."
        )
    return best


def _parse_media_range(media_range: str) -> tuple[str, float]:
    """Parse one entry of an Accept header; return its media range and its quality value from 0 to 1."""
    media, *parameters = (part.strip().lower() for part in media_range.split(";"))
    qualities = [part.removeprefix("q=") for part in parameters if part.startswith("q=")]
    is_valid = qualities and re.fullmatch(r"[01](\.[0-9]{0,3})?", qualities[0])
    return media, float(qualities[0]) if is_valid else 1.0


def _quality(qualities: Mapping[str, float], media: str) -> float:
    """Return the quality value of a media type, from 0 to 1, according to the most specific media range."""
    for name in (media, f"{media.partition('/')[0]}/*", "*/*"):
        if name in qualities:
            return qualities[name]
    return 0.0


def serialize(result: Result, media: str) -> bytes:
    """Return the table of a result as bytes, in the format of a media type in `FORMATS`.

    Raises:
        TooLargeError: see `limited_table`.
        ExportError: the table has infinite values, which JSON cannot represent.
    """
    frame, file_format = limited_table(result), FORMATS[media]
    return files.to_arrow(frame) if file_format == "arrow" else files.to_bytes(frame, file_format)
