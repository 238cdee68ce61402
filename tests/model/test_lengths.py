"""Test text length: limits, truncation, and tokenization in several threads."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from tokenizers import processors

from bert_probe.errors import TextError, TooLongError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoder
from bert_probe.model.lengths import MAX_CHARACTERS, MAX_TOKENS, kept_positions
from tests.helpers import families

NAMES = frozenset({"input_ids", "attention_mask"})


class Watched:
    """A tokenizer that records each text before it tokenizes the text."""

    def __init__(self, tokenizer: Any, on_text: Callable[[str], object]) -> None:
        self._tokenizer, self._told = tokenizer, on_text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, *more: Any, **options: Any) -> Any:
        self._told(text)
        return self._tokenizer(text, *more, **options)


# ---------------------------------------------------------------- characters


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("pair", [None, "a word"])
def test_text_with_too_many_characters_is_refused_before_tokenization(
    truncate: bool, pair: str | None, minilm: Checkpoint
) -> None:
    read: list[str] = []
    encoder = Encoder(Watched(minilm.tokenizer, read.append), 512, 30_522, NAMES)
    text = "word " * (MAX_CHARACTERS // 5)
    message = (
        r"^The text has 250,001 characters, but at most 250,000 are allowed, even with truncation\. Shorten"
    )
    with pytest.raises(TooLongError, match=message):
        encoder.encode(f"{text}!", pair, truncate)
    with pytest.raises(TooLongError, match=message):
        encoder.encode("a word", f"{text}!", truncate)
    assert read == []
    assert len(encoder.encode(text, pair, truncate=True)) == 512


def test_ligatures_count_with_their_expanded_length(minilm: Checkpoint) -> None:
    blessing = "\ufdfa"  # a ligature that is expanded to 18 characters
    message = r"^The text has 270,000 characters after its ligatures are expanded, but at most 250,000"
    with pytest.raises(TooLongError, match=message):
        minilm.encode(blessing * 15_000)
    assert minilm.encode(blessing * 13_000, truncate=True).dropped == 0, "one word, unknown"
    assert minilm.encode("é" * MAX_CHARACTERS, truncate=True).dropped == 0


# ---------------------------------------------------------------- tokens


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("accepted", [None, 100_000])
def test_model_without_limit_has_the_default_limit(accepted: int | None, minilm: Checkpoint) -> None:
    encoder = Encoder(minilm.tokenizer, accepted, 30_522, NAMES)
    text = "the " * MAX_TOKENS
    message = (
        r"^The text has 16,386 tokens, but at most 16,384 are supported, regardless of the model\. Shorten"
    )
    with pytest.raises(TooLongError, match=message):
        encoder.encode(text)
    cut = encoder.encode(text, truncate=True)
    assert (len(cut), cut.max_tokens, cut.dropped) == (MAX_TOKENS, MAX_TOKENS, 2)
    assert encoder.inputs(text, truncate=True).dropped == 2


def test_longer_text_of_a_pair_is_truncated() -> None:
    # Four tokens of the first text and two of the second, with three special tokens, are truncated to six.
    texts = [None, 0, 0, 0, 0, None, 1, 1, None]
    assert kept_positions(texts, 6) == [0, 1, 2, 5, 6, 8]
    assert kept_positions(texts, 6, "left") == [0, 3, 4, 5, 7, 8]
    assert kept_positions(texts, 7) == [0, 1, 2, 5, 6, 7, 8]
    assert kept_positions(texts, 9) == list(range(9))
    assert kept_positions(texts, 1) == [0, 5, 8], "special tokens are kept"


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "name", [*families.representative(families.FAMILIES), "no processor", "bytes, then a template"]
)
def test_truncation_equals_transformers(name: str, side: Literal["right", "left"]) -> None:
    family = families.FAMILIES.get(name, families.FAMILIES["roberta"])
    backend = family.tokenizer(family.special)
    if name == "no processor":
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    elif name == "bytes, then a template":
        template = family.special.processor(backend)
        backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    raw = families.fast(backend, family.special, truncation_side=side)
    tokenizer = families.fast(backend, family.special, truncation_side=side)
    rng = random.Random(name)
    words = [*" ".join(families.SENTENCES).split(), "  ", "\t[SEP]", "🙂"]
    for _ in range(40):
        count, length = rng.choice((1, 2)), rng.randint(2, 25)
        texts = [" ".join(rng.choices(words, k=length)) for _ in range(count)]
        limit = rng.randint(6, 30)
        cut = Encoder(tokenizer, limit, 10_000, NAMES).encode(texts[0], (*texts, None)[1], True)
        expected = raw(*texts, truncation=True, max_length=limit)
        fast = expected.encodings[0]
        assert cut.ids == expected["input_ids"]
        assert [token.word for token in cut.tokens] == fast.word_ids
        assert len(cut) + cut.dropped == len(raw(*texts, verbose=False)["input_ids"])


def test_truncation_does_not_change_tokenizer_settings(minilm: Checkpoint) -> None:
    minilm.encode("the " * 600, truncate=True)
    assert minilm.tokenizer.backend_tokenizer.truncation is None


# ---------------------------------------------------------------- threads and memory size


def test_tokenization_does_not_block_other_threads(minilm: Checkpoint) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(text: str) -> None:
        if text.startswith("long"):
            begun.set()
            assert go_on.wait(60)

    encoder = Encoder(Watched(minilm.tokenizer, slowly), 512, 30_522, NAMES)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(encoder.encode, "long " * 600, None, True)
        assert begun.wait(60)
        try:
            short = pool.submit(encoder.encode, "short").result(60)
        finally:
            go_on.set()
    assert (list(short.tokens), len(long.result())) == (["[CLS]", "short", "[SEP]"], 512)


def test_nbytes_includes_text_and_tokens(minilm: Checkpoint) -> None:
    short, long = (minilm.trace(text, truncate=True) for text in ("the " * 600, "the " * 50_000))
    assert len(short.tokens) == len(long.tokens)
    assert long.nbytes - short.nbytes == 4 * (50_000 - 600)
    parts = (short.states, short.queries, short.keys, short.values)
    arrays = sum(array.nbytes for group in parts for array in group or ())
    tokens = sum(sys.getsizeof(token) + sys.getsizeof(token.__dict__) for token in short.tokens)
    assert short.nbytes >= arrays + tokens + sys.getsizeof(short.encoding.text)


def test_traces_of_many_texts_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths.check_trace_bytes([lengths.MAX_TRACE_BYTES] * 2)
    lengths.check_trace_bytes([lengths.MAX_TRACE_BYTES // 4] * 4)
    with pytest.raises(TextError, match="first 3 texts need more than 500 MB of memory"):
        lengths.check_trace_bytes([lengths.MAX_TRACE_BYTES // 2] * 3)
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    with pytest.raises(TextError, match="first 4 texts need more than 250 MB of memory"):
        lengths.check_trace_bytes([lengths.MAX_TRACE_BYTES // 4] * 4)
