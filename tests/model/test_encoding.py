"""Test tokenization: ids equal the raw tokenizer's, and spans refer to the original text."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe.errors import EmptyTextError, ProbeError, TextError, TokenizerError, TooLongError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoder, Encoding, Token
from tests.helpers.families import LONG, PAIR, TEXT, build
from tests.helpers.gate import examples

Checkpoints = Callable[[str], Checkpoint]
FAMILIES = ["bert", "roberta", "albert", "camembert", "modernbert", "deberta-v2", "mpnet"]


def spans(encoding: Encoding) -> list[str | None]:
    """Return the part of the text that each token covers."""
    texts = (encoding.text, encoding.pair or "")
    return [
        None if token.special else texts[token.segment][token.start : token.end] for token in encoding.tokens
    ]


def words(encoding: Encoding) -> list[str]:
    return [word.text for word in encoding.words]


# ---------------------------------------------------------------- WordPiece: hand-computed cases


def test_wordpiece_tokens_have_spans_in_original_text(minilm: Checkpoint) -> None:
    encoding = minilm.encode("Mehdi loves   the Café!")
    assert list(encoding.tokens) == ["[CLS]", "me", "##hdi", "loves", "the", "cafe", "!", "[SEP]"]
    assert spans(encoding) == [None, "Me", "hdi", "loves", "the", "Café", "!", None]
    assert [token.word for token in encoding.tokens] == [None, 0, 0, 1, 2, 3, 4, None]
    assert [token.split_word for token in encoding.tokens] == [False, True, True, *[False] * 5]
    assert [token.special for token in encoding.tokens] == [True, *[False] * 6, True]
    assert [token.position for token in encoding.tokens] == list(range(8))
    assert words(encoding) == ["Mehdi", "loves", "the", "Café", "!"]
    assert encoding.words[0].positions == (1, 2)
    assert encoding.ids == [101, 2033, 22960, 7459, 1996, 7668, 999, 102]


def test_spaces_are_limited(minilm: Checkpoint) -> None:
    """Some tokenizers need time that grows with the square of the number of consecutive spaces."""
    assert len(minilm.encode("we" + " \n" * 5_000 + "left")) == 4
    with pytest.raises(TextError, match="has 10,001 consecutive spaces or line breaks, but at most 10,000"):
        minilm.encode("we" + " " * 10_001 + "left")


def test_pair_has_segments_and_words_of_both_texts(minilm: Checkpoint) -> None:
    encoding = minilm.encode("I like cookies!", "Do you?")
    assert list(encoding.tokens) == ["[CLS]", "i", "like", "cookies", "!", "[SEP]", "do", "you", "?", "[SEP]"]
    assert [token.segment for token in encoding.tokens] == [0] * 6 + [1] * 4
    assert [token.segment for token in encoding.tokens] == encoding.inputs["token_type_ids"].tolist()
    assert [(word.segment, word.index, word.text) for word in encoding.words] == [
        (0, 0, "I"),
        (0, 1, "like"),
        (0, 2, "cookies"),
        (0, 3, "!"),
        (1, 0, "Do"),
        (1, 1, "you"),
        (1, 2, "?"),
    ]


def test_tokens_within_and_across_characters_keep_spans(minilm: Checkpoint) -> None:
    # In NFD, the letter é consists of two characters, e and a combining accent.
    encoding = minilm.encode("cafe\u0301 東京")
    assert list(encoding.tokens)[1:-1] == ["cafe", "東", "京"]
    # The tokenizer drops the accent, so no token covers it.
    assert spans(encoding)[1:-1] == ["cafe", "東", "京"]
    assert words(encoding) == ["cafe", "東", "京"]


def test_unknown_word_is_one_token_with_its_complete_span(minilm: Checkpoint) -> None:
    encoding = minilm.encode("so 🙂🙂 be it")
    assert list(encoding.tokens) == ["[CLS]", "so", "[UNK]", "be", "it", "[SEP]"]
    assert spans(encoding)[2] == "🙂🙂"
    unknown = encoding.tokens[2]
    assert (unknown.special, unknown.id, unknown.word) == (False, 100, 1)


@pytest.mark.parametrize("typed", ["[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]"])
def test_typed_special_token_is_part_of_text(typed: str, minilm: Checkpoint) -> None:
    encoding = minilm.encode(f"a {typed} b", f"{typed} c")
    assert list(encoding.tokens) == ["[CLS]", "a", typed, "b", "[SEP]", typed, "c", "[SEP]"]
    assert spans(encoding) == [None, "a", typed, "b", None, typed, "c", None]
    assert [token.special for token in encoding.tokens] == [True, *[False] * 3, True, *[False] * 2, True]
    assert [token.segment for token in encoding.tokens] == [0] * 5 + [1] * 3
    assert words(encoding) == ["a", typed, "b", typed, "c"]


# ---------------------------------------------------------------- byte-level and Metaspace tokenizers


def test_byte_level_spans_exclude_leading_space(family: Checkpoints) -> None:
    encoding = family("roberta").encode("Three had left")
    assert list(encoding.tokens) == ["<s>", "Three", "Ġhad", "Ġleft", "</s>"]
    assert [token.display for token in encoding.tokens] == ["<s>", "Three", "had", "left", "</s>"]
    assert spans(encoding) == [None, "Three", "had", "left", None]
    assert words(encoding) == ["Three", "had", "left"]


def test_byte_tokens_share_span_and_are_shown_as_bytes(family: Checkpoints) -> None:
    encoding = family("roberta").encode("🙂")
    assert spans(encoding)[1:-1] == ["🙂"] * 4
    assert [token.display for token in encoding.tokens[1:-1]] == ["⟨F0⟩", "⟨9F⟩", "⟨99⟩", "⟨82⟩"]
    assert words(encoding) == ["🙂"]
    assert all(token.split_word for token in encoding.tokens[1:-1])


def test_space_tokens_are_shown_as_open_boxes(family: Checkpoints) -> None:
    encoding = family("roberta").encode("a   b\nc\td")
    displays = [token.display for token in encoding.tokens[1:-1]]
    assert "".join(displays).replace("␣", "") == "ab⏎c⇥d"
    assert any(set(piece) == {"␣"} for piece in displays)
    assert all(piece.strip() for piece in displays)


def test_metaspace_tokens_are_shown_without_marker(family: Checkpoints) -> None:
    encoding = family("camembert").encode("the  river")
    assert "".join(encoding.tokens[1:-1]).startswith("▁the")
    assert "".join(token.display.replace("␣", "") for token in encoding.tokens[1:-1]) == "theriver"
    assert words(encoding) == ["the", "river"], "a token that is only the space is not part of the word"


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("text", [TEXT, LONG[:200], "Straße, naïve café – 2024!", " leading and trailing "])
def test_tokens_cover_their_words_in_all_tokenizers(name: str, text: str, family: Checkpoints) -> None:
    encoding = family(name).encode(text)
    for word in encoding.words:
        pieces = [encoding.tokens[position] for position in word.positions]
        # Tokens for the bytes of one character share its span, so spans may overlap. They cover the whole
        # word.
        covered = {place for piece in pieces for place in range(piece.start, piece.end)}
        assert covered == set(range(pieces[0].start, pieces[-1].end))
        word_text = text[pieces[0].start : pieces[-1].end]
        # A token may consist of the space before the word, which is not part of the word.
        assert (word_text.strip() or word_text) == word.text
    assert "".join(words(encoding)).split() == "".join(text.split()).split()


# ---------------------------------------------------------------- pairs


@pytest.mark.parametrize("name", FAMILIES)
def test_segments_do_not_require_token_type_ids(name: str, family: Checkpoints) -> None:
    encoding = family(name).encode(TEXT, PAIR)
    segments = [token.segment for token in encoding.tokens]
    assert segments == sorted(segments)
    assert set(segments) == {0, 1}
    assert encoding.tokens[0].segment == 0
    assert encoding.tokens[-1].segment == 1
    for token in encoding.tokens:
        if not token.special:
            source = (TEXT, PAIR)[token.segment]
            assert source[token.start : token.end]
    if "token_type_ids" in encoding.inputs:
        assert segments == encoding.inputs["token_type_ids"].tolist()


# ---------------------------------------------------------------- empty texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The text is empty"),
        ("   ", "The text contains only spaces"),
        ("\n\t \u00a0", "The text contains only spaces"),
        ("\x00\x01\x02", "The text has no tokens, because"),
        ("\x7f", "The text has no tokens, because"),
        ("\u200b\u200d\ufeff", "The text has no tokens, because"),
    ],
)
def test_text_without_tokens_raises_error_with_reason(text: str, message: str, minilm: Checkpoint) -> None:
    with pytest.raises(EmptyTextError, match=f"^{message}.*Write at least one word"):
        minilm.encode(text)


def test_empty_text_of_pair_is_named(minilm: Checkpoint) -> None:
    with pytest.raises(EmptyTextError, match=r"^Sentence A is empty"):
        minilm.encode("", "b")
    with pytest.raises(EmptyTextError, match=r"^Sentence B contains only spaces"):
        minilm.encode("a", "  ")


@pytest.mark.parametrize("text", ["\ud83d", "ab\udc00", "\udc00\ud800"])
def test_unpaired_surrogate_is_refused_with_its_position(text: str, minilm: Checkpoint) -> None:
    place = len(text) - 1 if text.startswith("ab") else 0
    with pytest.raises(TextError, match=f"Character {place} is half of a surrogate pair"):
        minilm.encode(text)
    with pytest.raises(TextError, match="surrogate"):
        minilm.encode("fine", text)


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"]])
def test_non_string_is_refused(text: Any, minilm: Checkpoint) -> None:
    with pytest.raises(TextError, match="must be a string, not"):
        minilm.encode(text)


def test_null_character_is_dropped_without_shifting_spans(minilm: Checkpoint) -> None:
    encoding = minilm.encode("be\x00fore \x00 we")
    assert list(encoding.tokens) == ["[CLS]", "before", "we", "[SEP]"]
    assert spans(encoding) == [None, "be\x00fore", "we", None]


# ---------------------------------------------------------------- length


def test_maximum_length_fits_and_one_more_token_does_not(minilm: Checkpoint) -> None:
    fits = minilm.encode("the " * 510)
    assert len(fits) == fits.max_tokens == 512
    assert fits.dropped == 0
    with pytest.raises(
        TooLongError,
        match=r"^The text has 513 tokens, but this model accepts at most 512\. Shorten the text, or turn on",
    ):
        minilm.encode("the " * 511)
    assert minilm.encode("the " * 510, truncate=True).dropped == 0


def test_truncation_counts_dropped_tokens(minilm: Checkpoint) -> None:
    cut = minilm.encode("the " * 600, truncate=True)
    assert (len(cut), cut.dropped) == (512, 90)
    assert cut.tokens[-1] == "[SEP]"
    after = minilm.encode("the " * 200)
    assert len(after) == 202, "truncation settings are not kept"


def test_longer_text_of_pair_is_truncated(minilm: Checkpoint) -> None:
    cut = minilm.encode("the " * 600, "ground " * 20, truncate=True)
    assert (len(cut), cut.dropped) == (512, 600 + 20 + 3 - 512)
    assert list(cut.tokens).count("ground") == 20
    assert list(cut.tokens).count("the") == 512 - 3 - 20
    assert [token.segment for token in cut.tokens] == [0] * 491 + [1] * 21


def test_long_text_is_refused_or_truncated(minilm: Checkpoint) -> None:
    text = "ground " * 35_000
    with pytest.raises(TooLongError, match=r"^The text has 35,002 tokens"):
        minilm.encode(text)
    assert minilm.encode(text, truncate=True).dropped == 35_002 - 512


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "camembert", "mpnet", "xlm-roberta-xl", "distilbert", "electra"]
)
def test_max_tokens_is_longest_runnable_input(
    name: str, family: Checkpoints, family_folder: Callable[[str], Any]
) -> None:
    checkpoint = family(name)
    raw = AutoModel.from_pretrained(family_folder(name)).eval()
    longest = checkpoint.encode(f"{LONG} {LONG}", truncate=True)
    assert len(longest) == longest.max_tokens
    inputs = {key: torch.tensor(ids)[None] for key, ids in longest.inputs.items()}
    raw(**inputs)
    one_more = {key: torch.cat([ids[:, :2], ids[:, 1:]], dim=1) for key, ids in inputs.items()}
    with pytest.raises((IndexError, RuntimeError)):
        raw(**one_more)


@pytest.mark.parametrize("limit", [3, 4, 5])
def test_small_limit_keeps_special_tokens(limit: int, minilm: Checkpoint) -> None:
    encoder = Encoder(minilm.tokenizer, limit, 30_522, frozenset({"input_ids"}))
    cut = encoder.encode("one two three four", truncate=True)
    assert list(cut.tokens) == ["[CLS]", *["one", "two", "three"][: limit - 2], "[SEP]"]
    assert set(cut.inputs) == {"input_ids"}


def test_limit_without_room_for_text_raises_empty_text_error(minilm: Checkpoint) -> None:
    encoder = Encoder(minilm.tokenizer, 2, 30_522, frozenset({"input_ids"}))
    with pytest.raises(EmptyTextError, match="the truncation removes all"):
        encoder.encode("one two three four", truncate=True)


def test_id_outside_vocabulary_is_refused(minilm: Checkpoint) -> None:
    encoder = Encoder(minilm.tokenizer, 512, 2_000, frozenset({"input_ids"}))
    with pytest.raises(
        TokenizerError, match=r"id 7,459, but the largest id in the model's vocabulary is 1,999"
    ):
        encoder.encode("loves")


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_token_type_that_the_model_lacks_is_refused(family: str, tmp_path: Path) -> None:
    build(family, tmp_path, type_vocab_size=1)
    checkpoint = bert_probe.load(tmp_path)
    assert checkpoint.trace(TEXT).encoding.inputs["token_type_ids"].max() == 0
    with pytest.raises(
        TokenizerError,
        match=r"token type 1, but the largest token type of the model is 0\. Use a single text",
    ):
        checkpoint.trace(TEXT, PAIR)


# ---------------------------------------------------------------- record of an encoding


def test_tokens_are_immutable_strings_that_pickle(minilm: Checkpoint) -> None:
    token = minilm.encode("Mehdi").tokens[2]
    assert token == token.token == "##hdi"
    assert type(token.token) is str
    with pytest.raises(AttributeError, match="read-only"):
        token.position = 5
    copy = pickle.loads(pickle.dumps(token))
    assert isinstance(copy, Token)
    assert (copy, copy.__dict__) == (token, token.__dict__)


def test_inputs_are_read_only(minilm: Checkpoint) -> None:
    inputs = minilm.encode("one").inputs
    with pytest.raises(ValueError, match="read-only"):
        inputs["input_ids"][0] = 5
    with pytest.raises(TypeError):
        inputs["input_ids"] = np.zeros(3)  # type: ignore[index]


# ---------------------------------------------------------------- arbitrary texts


def assert_well_formed(encoding: Encoding) -> None:
    texts = (encoding.text, encoding.pair or "")
    last = {0: 0, 1: 0}
    for position, token in enumerate(encoding.tokens):
        assert token.position == position
        assert token.display
        if token.special:
            assert token.word is token.start is token.end is None
            continue
        assert token.start is not None
        assert token.end is not None
        assert 0 <= token.start <= token.end <= len(texts[token.segment])
        assert token.start >= last[token.segment], "spans go forward"
        last[token.segment] = token.start
    assert sum(len(word.positions) for word in encoding.words) == sum(
        not token.special for token in encoding.tokens
    )


@pytest.fixture(scope="module")
def raw_tokenizer(minilm: Checkpoint) -> Any:
    return AutoTokenizer.from_pretrained(minilm.tokenizer.name_or_path, local_files_only=True)


anything = st.text(alphabet=st.characters(codec=None), max_size=60) | st.text(
    alphabet="aé東🙂 \t\n\x00\u0301\u200d[SEPMAK]#'-ǅß\ud800", max_size=40
)


@settings(max_examples=examples(300), deadline=None)
@given(text=anything, pair=st.none() | anything)
def test_any_text_has_ids_of_raw_tokenizer(
    text: str, pair: str | None, minilm: Checkpoint, raw_tokenizer: Any
) -> None:
    halves = any(0xD800 <= ord(character) < 0xE000 for character in text + (pair or ""))
    if halves:
        with pytest.raises(TextError, match="surrogate"):
            minilm.encode(text, pair)
        return
    texts = [part for part in (text, pair) if part is not None]
    if not all(raw_tokenizer(part, add_special_tokens=False)["input_ids"] for part in texts):
        with pytest.raises(EmptyTextError):
            minilm.encode(text, pair)
        return
    encoding = minilm.encode(text, pair)
    raw = raw_tokenizer(text, pair)
    assert encoding.ids == raw["input_ids"]
    assert encoding.inputs["token_type_ids"].tolist() == raw["token_type_ids"]
    assert list(encoding.tokens) == raw_tokenizer.convert_ids_to_tokens(raw["input_ids"])
    assert_well_formed(encoding)


@settings(max_examples=examples(60), deadline=None)
@given(text=anything, pair=st.none() | anything)
@pytest.mark.parametrize("name", ["roberta", "camembert"])
def test_any_text_is_well_formed_in_other_tokenizers(
    name: str, text: str, pair: str | None, family: Checkpoints
) -> None:
    try:
        encoding = family(name).encode(text, pair)
    except ProbeError:
        return
    raw = family(name).tokenizer(text, pair)
    assert encoding.ids == raw["input_ids"]
    assert_well_formed(encoding)
