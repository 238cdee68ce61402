"""Test that hostile texts give correct results or an error in the library, command line and pages."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import numpy as np
import transformers

from benchmarks.pairs import Line
from benchmarks.proof.hostile_texts import texts
from benchmarks.proof.theme import Run
from bert_probe import Attention
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load
from bert_probe.model.trace import Trace
from bert_probe.server.asgi import PAGES
from bert_probe.ui import jobs, workbench
from tests.helpers.command_line import CommandResult
from tests.helpers.command_line import bert_probe as command
from tests.helpers.exactness import ULP
from tests.helpers.families import FAMILIES, build
from tests.helpers.pages import error_text, open_page

TEXTS = 10_000
ON_PAGES = 200
"""Number of texts to open on a page of the app."""
TOKENS_APART = 500
"""Number of texts for `bert-probe tokens`, which is slow because it loads the tokenizer for each text."""
ROUNDINGS = 8
"""Tolerance of the sum of an attention row in ULP, in addition to one ULP for each token."""


def lines(run: Run) -> Iterator[Line]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    total = run.times(TEXTS)
    hostile = list(texts(run.lots("texts"), total))
    own = load()
    yield _pages(run, hostile)
    yield _library(run, own, hostile)


def _library(run: Run, own: Checkpoint, hostile: list[str]) -> Line:
    """Run all texts in the library and the command line, alternating between the built-in and tiny models."""
    family_checkpoints = _families(run)
    failed, done, refused = len(run.failures), 0, 0
    every = max(1, len(hostile) // run.times(TOKENS_APART))
    for number, text in enumerate(hostile):
        if run.left < 0:
            break
        for checkpoint in (own, family_checkpoints[number % len(family_checkpoints)]):
            try:
                outcome = _traced(run, checkpoint, text)
                if checkpoint is own:
                    _commanded(run, own, text, outcome, apart=number % every == 0)
                    refused += isinstance(outcome, TextError)
            except Exception as error:  # any other exception is a failure
                run.failed(f"{checkpoint.description.name}, {text[:100]!r}: {type(error).__name__}: {error}")
        done += 1
    return Line(
        "Hostile texts, built-in model and tiny model families in turn",
        "library and command line: rows sum to 1, correct offsets, CSV round trip",
        f"{done:,} of {len(hostile):,}, of which {refused:,} refused with a message",
        "no exception",
        done == len(hostile) and len(run.failures) == failed,
    )


def _families(run: Run) -> list[Checkpoint]:
    checkpoints = []
    for name in FAMILIES:
        build(name, run.folder / name)
        checkpoints.append(load(run.folder / name))
    return checkpoints


def _traced(run: Run, checkpoint: Checkpoint, text: str) -> Trace | TextError:
    """Trace a text and check its values; return the trace, or the error if the text is refused."""
    try:
        trace = checkpoint.trace(text, truncate=True)
    except TextError as error:
        if "\n" in str(error) or not str(error).endswith("."):
            run.failed(f"{text[:100]!r}: no sentence: {error}")
        return error
    for problem in _wrong(trace):
        run.failed(f"{checkpoint.description.name}, {text[:100]!r} of {len(text):,} characters: {problem}")
    return trace


def _wrong(trace: Trace) -> Iterator[str]:
    """Yield a description of each invariant that a trace violates: IDs, finite vectors, row sums, offsets."""
    length, description = len(trace.tokens), trace.checkpoint.description
    if not all(0 <= token.id < description.vocabulary_size for token in trace.tokens):
        yield "a token outside the vocabulary"
    if not all(np.isfinite(state).all() for state in trace.states):
        yield "vectors that are not finite"
    tolerance = (length + ROUNDINGS) * ULP
    for layer in range(trace.layers):
        weights = trace.attention(layer)
        off = float(np.abs(weights.sum(axis=-1, dtype=np.float64) - 1).max())
        if not off <= tolerance or weights.min() < 0:
            yield f"rows of layer {layer + 1} are off 1 by {off:.2g} of {tolerance:.2g}"
    before = 0
    for token in trace.tokens:
        if token.special:
            continue
        start, end = token.start, token.end
        if start is None or end is None or not before <= start <= end <= len(trace.encoding.text):
            yield f"token {token.position} has characters {start} to {end} after {before}"
            return
        before = start


def _commanded(run: Run, own: Checkpoint, text: str, outcome: Trace | TextError, *, apart: bool) -> None:
    """Check that the command line prints the same tokens and last-layer attention weights as the library.

    Args:
        outcome: Trace or error of the text in the library.
        apart: Whether to run `bert-probe tokens` too.
    """
    ended = command("attention", "--truncate", "--", text, built_in=own)
    if isinstance(outcome, TextError):
        _same(run, text, "attention", ended.status, 2)
        _same(run, text, "attention", ended.err.count("\n"), 1)
        return
    result = Attention().of(outcome)
    header, *rows = _rows(ended)
    _same(run, text, "attention", [row[0] for row in rows], [str(token) for token in outcome.tokens])
    _same(run, text, "attention", header[1:], [str(token) for token in outcome.tokens])
    numbers = np.array([row[1:] for row in rows], dtype=np.float32)
    _same(run, text, "attention", np.array_equal(numbers, result.weights), True)
    if apart and outcome.encoding.dropped == 0:
        _, *rows = _rows(command("tokens", "--", text))
        _same(run, text, "tokens", [row[1] for row in rows], [str(token) for token in outcome.tokens])
        _same(run, text, "tokens", [int(row[2]) for row in rows], [token.id for token in outcome.tokens])


def _rows(ended: CommandResult) -> list[list[str]]:
    return list(csv.reader(io.StringIO(ended.text, newline="")))


def _same(run: Run, text: str, name: str, actual: object, expected: object) -> None:
    if actual != expected:
        run.failed(f"bert-probe {name}, {text[:100]!r}: {str(actual)[:100]} is not {str(expected)[:100]}")


def _has_utf8(text: str) -> bool:
    """Return whether a browser can send a text; lone surrogates occur only in files and Python."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pages(run: Run, hostile: list[str]) -> Line:
    """Open a sample of the texts, each on the next page of the app."""
    jobs.PATIENCE = workbench.PATIENCE = 100.0  # let each run of a page wait for its result
    sent = [text for text in hostile if _has_utf8(text)]
    some = run.lots("pages").sample(sent, min(len(sent), run.times(ON_PAGES)))
    done, failed, half = 0, len(run.failures), run.left / 2
    for number, text in enumerate(some):
        if run.left < half:
            break
        page = PAGES[number % len(PAGES)]
        app = open_page(page, a=text)
        for raised in app.exception:
            run.failed(f"/{page}, {text[:100]!r}: {raised.message}")
        outcome = error_text(app)
        if outcome and not outcome.rstrip().endswith("."):
            run.failed(f"/{page}, {text[:100]!r}: no sentence: {outcome}")
        done += 1
    return Line(
        "Hostile texts on the pages",
        "Streamlit's test runner, one of ten pages each",
        f"{done:,} of {len(some):,}",
        "no exception",
        done == len(some) and len(run.failures) == failed,
    )
