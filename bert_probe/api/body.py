"""What is sent to be asked: a body in JSON, checked, and then answered by whoever shares models and passes.

A body is spelled as the provenance of its answer: `model`, `revision`, `text` and `pair`, or `texts`. Layers
and heads count from 1, tokens from 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from bert_probe.analyses.attention.attention import Attention, AttentionLong
from bert_probe.analyses.attention.measures import get_measure
from bert_probe.api.errors import BodyError
from bert_probe.api.limits import MAX_BODY_BYTES, MAX_NAME_LENGTH, MAX_SENTENCES, MAX_TEXTS
from bert_probe.api.registry import RegisteredQuestion
from bert_probe.core.inputs import InputValues
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import MAX_CHARACTERS
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.runtime.cache import ResultCache
from bert_probe.runtime.jobs import SLOTS
from bert_probe.text import strict_json
from bert_probe.text.labeled_texts import KINDS, LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import parse_sentences
from bert_probe.text.strict_json import DuplicateKeyError
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

TABLE_SUFFIXES: Final = (".csv", ".tsv")
"""Endings of files with a header and labelled texts; others are CoNLL, or CoNLL-U."""


class ModelServices(Protocol):
    """What everybody who asks has in common: opened models, traces and answers, and the queue for them."""

    answers: ResultCache

    def open_checkpoint(self, model: str, revision: str, progress: Progress) -> Checkpoint:
        """A checkpoint, opened once; "" is the built-in."""
        ...

    def traces(
        self,
        checkpoint: Checkpoint,
        texts: Sequence[tuple[str, str | None]],
        truncate: bool,
        check: Callable[[], None],
    ) -> list[Trace]:
        """Traces of texts, each made once; who waits for that calls ``check``, which may end it."""
        ...


@dataclass(frozen=True)
class BodyFile:
    """A file that came with a body."""

    name: str
    content: bytes
    kind: str | None


@dataclass(frozen=True)
class Body:
    """What is asked, of whom.

    Attributes:
        asked: fields of the question as JSON has them; which values there are, the model says.
        models: name and revision of each, "" for the built-in and the newest.
        texts: with their pairs.
        sentences: many, one an entry.
        files: argument of the question → file.
        truncate: cut what is too long.
    """

    served: RegisteredQuestion
    asked: Mapping[str, Any]
    models: tuple[tuple[str, str], ...]
    texts: tuple[tuple[str, str | None], ...]
    sentences: tuple[str, ...]
    files: Mapping[str, BodyFile]
    truncate: bool

    def answer(self, shared: ModelServices, progress: Progress) -> Result:
        """The answer.

        Args:
            progress: told how far it is; what it raises ends the work.

        Raises:
            ProbeError: it cannot be answered, and why.
        """
        checkpoints = [shared.open_checkpoint(*model, progress) for model in self.models]
        progress(0, 0)
        question = self.served.question.from_json(self.asked, checkpoints[0].description)

        def check() -> None:
            progress(0, 0)

        given = self._subjects(shared, checkpoints, check)
        check()
        ask: Any = question
        more: dict[str, Any] = {"progress": progress} if self.served.has_progress else {}
        long = self.served.has_progress and _takes_long(question, given)
        with SLOTS.turn(check) if long else nullcontext():
            if self.files or isinstance(question, AttentionLong):
                # Rows of a file are no key; and what is computed as it is written would keep its trace alive.
                answer: Result = ask.of(*given, **more)
            else:
                answer = shared.answers.of(ask.of, *given, **more)
        return answer

    def _subjects(
        self, shared: ModelServices, checkpoints: Sequence[Checkpoint], check: Callable[[], None]
    ) -> list[Any]:
        """Return the positional arguments of the question's method `of`."""
        read = partial(shared.traces, texts=self.texts, truncate=self.truncate, check=check)
        inputs = self.served.inputs
        if inputs.models > 1:
            traces = [read(checkpoint)[0] for checkpoint in checkpoints if self.texts]
        else:
            traces = read(checkpoints[0]) if self.texts else []
        files = {name: _parse_file(file) for name, file in self.files.items()}
        return inputs.arguments(InputValues(checkpoints, traces, self.sentences, files, self.truncate))


def _takes_long(question: Any, given: Sequence[Any]) -> bool:
    """Whether a question that reports is to wait its turn; of attention only some measures are."""
    if not isinstance(question, Attention | AttentionLong):
        return True
    trace, what = given[0], get_measure(question.measure)
    chosen = (question.layer,) if isinstance(question, Attention) else question.layers
    return any(what.takes_long(trace, layer) for layer in chosen or range(trace.layers))


def _parse_file(file: BodyFile) -> LabeledTexts | Sequence[TaggedSentence]:
    if file.name.lower().endswith(TABLE_SUFFIXES):
        return parse_labeled_texts(file.content, file.name, file.kind)
    return parse_tagged_sentences(file.content, file.name)


# ---------------------------------------------------------------- reading


def parse_json(content: bytes) -> Any:
    """JSON of a body.

    Raises:
        BodyError: it is none, or an object of it has a key twice.
    """
    try:
        # In JSON 5.0 is the same number as 5.
        return strict_json.loads(content, parse_float=_parse_number, parse_constant=_refuse_constant)
    except DuplicateKeyError as error:
        raise BodyError(f"In the body {error}.") from None
    except (ValueError, RecursionError) as error:
        raise BodyError(f"The body is no JSON in UTF-8: {str(error)[:200]}.") from None


def _parse_number(written: str) -> int | float:
    number = float(written)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _refuse_constant(written: str) -> float:
    raise ValueError(f"{written} is no number of JSON")


def read_body(served: RegisteredQuestion, given: Any) -> Body:
    """The body of a question, as `parsed` gives it.

    Raises:
        BodyError: a member that is missing, unknown, or not of its kind.
    """
    body = _check_object("The body", given, known=allowed_members(served))
    asked = _check_object("question", body.get("question", {}))
    for name in served.file_fields & asked.keys():
        if asked[name] is not None:
            raise BodyError(
                f"{name} is a file of the machine that answers, and is chosen there alone: on its command "
                "line or in Python. Leave it out."
            )
    models = [body]
    if served.inputs.models > 1:
        _require(body, "other_model")
        models.append(_check_object("other_model", body["other_model"], known=("model", "revision")))
    return Body(
        served,
        asked,
        tuple((_read_name(model, "model"), _read_name(model, "revision")) for model in models),
        _read_texts(served, body),
        _read_sentences(body) if served.inputs.has_sentences and "files" not in body else (),
        _read_files(served, body),
        _read_truncate(body),
    )


def allowed_members(served: RegisteredQuestion) -> tuple[str, ...]:
    """What the body of a question may hold."""
    least, most = served.inputs.texts
    names = ["question", "model", "revision"]
    names += ["other_model"] if served.inputs.models > 1 else []
    names += ["text", "pair"] if least == 1 else []
    names += ["texts"] if most != least or (most or 0) > 1 else []
    names += ["sentences"] if served.inputs.has_sentences else []
    names += ["files"] if served.inputs.files else []
    return (*names, *(["truncate"] if served.inputs.can_truncate else []))


def _check_object(where: str, given: Any, known: Sequence[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise BodyError(f"{where} must be an object, not {_preview(given)}.")
    for name in given:
        if known is not None and name not in known:
            raise BodyError(f"{where} has no member {_preview(name)}; it may have {', '.join(known)}.")
    return given


def _require(body: Mapping[str, Any], name: str) -> None:
    if name not in body:
        raise BodyError(f"{name} is missing. Give it.")


def _check_text(where: str, given: Any, most: int = MAX_CHARACTERS) -> str:
    if not isinstance(given, str):
        raise BodyError(f"{where} must be a text, not {_preview(given)}.")
    if len(given) > most:
        raise BodyError(f"{where} has {len(given):,} characters; at most {most:,} are taken.")
    return given


def _read_name(body: Mapping[str, Any], member: str) -> str:
    given = body.get(member)
    return "" if given is None else _check_text(member, given, MAX_NAME_LENGTH)


def _check_list(where: str, given: Any, most: int) -> Sequence[Any]:
    if not isinstance(given, list):
        raise BodyError(f"{where} must be a list, not {_preview(given)}.")
    if len(given) > most:
        raise BodyError(f"{where} holds {len(given):,}; at most {most:,} are taken.")
    return given


def _read_texts(served: RegisteredQuestion, body: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    least, most = served.inputs.texts
    if most == 0:
        return ()
    if "texts" not in body:
        _require(body, "text" if least == 1 else "texts")
        return (_read_pair("text", {name: body[name] for name in ("text", "pair") if name in body}),)
    if "text" in body or "pair" in body:
        raise BodyError("Both text and texts are given. Give one of them.")
    listed = _check_list("texts", body["texts"], MAX_TEXTS if most is None else most)
    if len(listed) < least:
        raise BodyError(f"texts holds {len(listed)}; give {least} or more.")
    return tuple(_read_pair(f"texts[{number}]", one) for number, one in enumerate(listed))


def _read_pair(where: str, given: Any) -> tuple[str, str | None]:
    if isinstance(given, str):
        return _check_text(where, given), None
    member = _check_object(where, given, known=("text", "pair"))
    _require(member, "text")
    pair = member.get("pair")
    return _check_text("text", member["text"]), None if pair is None else _check_text("pair", pair)


def _read_sentences(body: Mapping[str, Any]) -> tuple[str, ...]:
    _require(body, "sentences")
    given = body["sentences"]
    if isinstance(given, list):
        listed = tuple(_check_text(f"sentences[{number}]", one) for number, one in enumerate(given))
    else:
        file = _read_file("sentences", given, known=("file", "content"))
        listed = parse_sentences(file.content, file.name)
    _check_list("sentences", list(listed), MAX_SENTENCES)
    return listed


def _read_files(served: RegisteredQuestion, body: Mapping[str, Any]) -> Mapping[str, BodyFile]:
    if "files" not in body and not any(file.is_required for file in served.inputs.files.values()):
        return {}
    _require(body, "files")
    given = _check_object("files", body["files"], known=tuple(served.inputs.files))
    for name, file in served.inputs.files.items():
        if file.is_required and name not in given:
            raise BodyError(f"files has no {name}. Give it.")
    return {name: _read_file(name, one) for name, one in given.items()}


def _read_file(where: str, given: Any, known: Sequence[str] = ("file", "content", "kind")) -> BodyFile:
    file = _check_object(where, given, known)
    _require(file, "file")
    _require(file, "content")
    kind = file.get("kind")
    if kind is not None and kind not in KINDS:
        raise BodyError(f"kind of {where} must be {', '.join(KINDS)}, not {_preview(kind)}.")
    content = _check_text(f"content of {where}", file["content"], MAX_BODY_BYTES)
    return BodyFile(
        _check_text(f"file of {where}", file["file"], MAX_NAME_LENGTH),
        content.encode("utf-8", "surrogatepass"),
        kind,
    )


def _read_truncate(body: Mapping[str, Any]) -> bool:
    given = body.get("truncate", False)
    if not isinstance(given, bool):
        raise BodyError(f"truncate must be true or false, not {_preview(given)}.")
    return given


def _preview(given: Any) -> str:
    text = json.dumps(given)
    return text if len(text) <= 60 else f"{text[:60]}…"
