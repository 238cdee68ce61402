"""Serve agents over standard input and output, and answer invalid lines with an error.

The `mcp` package ignores lines that are not messages, so a client would wait forever for a response.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any, BinaryIO, TextIO

import anyio
from anyio import to_thread
from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import INVALID_REQUEST, PARSE_ERROR

from bert_probe.api import limits
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Trace
from bert_probe.runtime import permissions
from bert_probe.runtime.cache import Cache, ResultCache
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError


async def serve(server: Server[Any], stdin: BinaryIO, stdout: TextIO) -> None:
    """Answer the messages from `stdin`, one per line, until the end of the stream."""
    answers = _Output(stdout)
    async with stdio_server(stdin=_Input(stdin, answers), stdout=answers) as (incoming, outgoing):  # type: ignore[arg-type]
        await server.run(incoming, outgoing, server.create_initialization_options())


class _Output:
    """A text stream with a lock, because the server and `_Input` both write lines to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = anyio.wrap_file(stream), anyio.Lock()

    async def write(self, text: str) -> None:
        async with self._lock:
            await self._stream.write(text)

    async def flush(self) -> None:
        async with self._lock:
            await self._stream.flush()


class _Input:
    """Yields the lines of a stream that are messages, and answers all other lines with an error."""

    def __init__(self, stream: BinaryIO, answers: _Output) -> None:
        self._stream, self._answers = stream, answers

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await to_thread.run_sync(self._read_line):
            if line.isspace():
                continue
            refused = refusal(line)
            if refused is None:
                yield line.decode("utf-8")
            else:
                await self._answers.write(refused.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
                await self._answers.flush()

    def _read_line(self) -> bytes:
        """Return the next line; if the line is too long, return only its first bytes."""
        line = part = self._stream.readline(limits.MAX_BODY_BYTES + 1)
        while len(part) > limits.MAX_BODY_BYTES and not part.endswith(b"\n"):
            part = self._stream.readline(limits.MAX_BODY_BYTES + 1)
        return line


def refusal(line: bytes) -> types.JSONRPCError | None:
    """Return the error for a line that is not a message, or None for a message."""
    if len(line) > limits.MAX_BODY_BYTES:
        return _error(
            INVALID_REQUEST,
            f"The message has more than {limits.MAX_BODY_BYTES:,} bytes. Send a shorter message.",
        )
    try:
        message = strict_json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except DuplicateKeyError as error:
        sentence = f"In the message {error}."
        try:
            return _error(INVALID_REQUEST, sentence, json.loads(line))
        except (ValueError, RecursionError):  # the line has a syntax error after the duplicate key
            return _error(PARSE_ERROR, sentence)
    except RecursionError:
        return _error(PARSE_ERROR, "The message is nested too deeply. Use fewer nested arrays and objects.")
    except ValueError as error:
        return _error(PARSE_ERROR, f"The message is not JSON in UTF-8: {str(error)[:200]}.")
    try:
        json.dumps(message, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        sentence = "The message contains half a surrogate pair, which is not a character. Write both halves."
        return _error(INVALID_REQUEST, sentence, message)
    try:
        parsed = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        parsed = None
    is_request = isinstance(message, dict) and "method" in message and "id" in message
    if parsed is None or (is_request and not isinstance(parsed, types.JSONRPCRequest)):
        sentence = (
            "The message is not JSON-RPC 2.0. Send one object with jsonrpc, method, id (a string or a whole "
            "number) and params (an object)."
        )
        return _error(INVALID_REQUEST, sentence, message)
    return None


def _error(code: int, sentence: str, message: Any = None) -> types.JSONRPCError:
    """Return an error response, with the message's id if the id is valid."""
    message_id = message.get("id") if isinstance(message, dict) else None
    if type(message_id) not in (int, str):
        message_id = None
    if isinstance(message_id, str):
        message_id = message_id.encode("utf-8", "replace").decode("utf-8")
    return types.JSONRPCError(
        jsonrpc="2.0", id=message_id, error=types.ErrorData(code=code, message=sentence)
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


MAX_CHECKPOINTS, MAX_TRACE_BYTES, MAX_ANSWER_BYTES = 2, 300_000_000, 100_000_000


class LocalModels:
    """The `ModelServices` for a process without server sessions."""

    def __init__(self) -> None:
        self.answers = ResultCache(MAX_ANSWER_BYTES)
        self._checkpoints: Cache[tuple[str, str], Checkpoint] = Cache(MAX_CHECKPOINTS)
        self._traces: Cache[tuple[Hashable, ...], Trace] = Cache(MAX_TRACE_BYTES, lambda trace: trace.nbytes)

    def open_checkpoint(self, model: str, revision: str, progress: Progress) -> Checkpoint:
        """Return a cached or newly opened checkpoint; the name "" stands for the built-in model."""
        permissions.current().check_model(model, revision)
        return self._checkpoints.once(
            (model, revision), lambda: load(model or None, revision or None, progress=progress)
        )

    def traces(
        self,
        checkpoint: Checkpoint,
        texts: Sequence[tuple[str, str | None]],
        truncate: bool,
        check: Callable[[], None] = lambda: None,
    ) -> list[Trace]:
        """Return the traces of texts from the cache, and compute missing traces."""
        return [
            self._traces.once(
                (checkpoint.description, text, truncate),
                lambda text=text: checkpoint.trace(*text, truncate=truncate),  # type: ignore[misc]
                check,
            )
            for text in texts
        ]
