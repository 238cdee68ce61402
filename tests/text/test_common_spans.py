"""Test common spans of two tokenizations: hand-computed cases, and parity with a loop over characters."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, pairwise

import numpy as np
import pytest

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token
from bert_probe.text.alignment import CommonSpans, Span, common_spans
from tests.helpers.families import LONG, PAIR, TEXT

Opened = Callable[[str], Checkpoint]


def encoding(text: str, *pieces: str | tuple[int, int], pair: str | None = None) -> Encoding:
    """Return an encoding. Arguments are names of special tokens, and character ranges of other tokens.

    Tokens after "|" belong to the second text.
    """
    tokens: list[Token] = []
    segment = 0
    for piece in pieces:
        if piece == "|":
            segment = 1
            continue
        start, end = (None, None) if isinstance(piece, str) else piece
        name = piece if isinstance(piece, str) else (text, pair or "")[segment][start:end]
        attributes = {"segment": segment, "word": None, "split_word": False, "display": name}
        special = {"special": start is None, "start": start, "end": end}
        tokens.append(Token(name, position=len(tokens), id=hash(name), **attributes, **special))
    return Encoding(text, pair, tuple(tokens), {}, None, 0)


def describe_spans(spans: CommonSpans) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    return [(span.text, span.a, span.b) for span in spans.spans]


def test_common_spans_equal_hand_worked_cases() -> None:
    text = "unhappy boat!"
    a = encoding(text, "[CLS]", (0, 2), (2, 7), (8, 12), (12, 13), "[SEP]")
    b = encoding(text, "<s>", (0, 3), (3, 5), (5, 7), (8, 13), "</s>", "</s>")
    assert describe_spans(common_spans(a, b)) == [
        ("[CLS] · <s>", (0,), (0,)),
        ("unhappy", (1, 2), (1, 2, 3)),
        ("boat!", (3, 4), (4,)),
        ("[SEP] · </s></s>", (5,), (5, 6)),
    ]
    assert describe_spans(common_spans(b, a))[1] == ("unhappy", (1, 2, 3), (1, 2))


def test_tokens_of_one_side_join_the_following_span() -> None:
    text = "a \u200b b "
    a = encoding(text, "[CLS]", (0, 1), (2, 3), (4, 5), "[SEP]")
    b = encoding(text, (0, 1), (1, 2), (4, 5), (5, 6))
    assert describe_spans(common_spans(a, b)) == [
        ("[CLS]", (0,), ()),
        ("a", (1,), (0,)),
        ("\u200b b", (2, 3), (1, 2, 3)),
        ("[SEP]", (4,), ()),
    ]


def test_tokens_of_one_character_and_pairs_are_joined() -> None:
    a = encoding("京!", "[CLS]", (0, 1), (1, 2), "[SEP]", "|", (0, 2), "[SEP]", pair="ab")
    b = encoding("京!", "<s>", (0, 1), (0, 1), (0, 1), (1, 2), "</s>", "</s>", "|", (0, 1), (1, 2), pair="ab")
    spans = common_spans(a, b)
    assert describe_spans(spans) == [
        ("[CLS] · <s>", (0,), (0,)),
        ("京", (1,), (1, 2, 3)),
        ("!", (2,), (4,)),
        ("[SEP] · </s></s>", (3,), (5, 6)),
        ("ab", (4,), (7, 8)),
        ("[SEP]", (5,), ()),
    ]
    assert [span.segment for span in spans.spans] == [0, 0, 0, 0, 1, 1]
    assert spans.rows == (0, 1, 2, 3, 4)


def test_merged_attention_equals_hand_computation() -> None:
    spans = CommonSpans(
        (
            Span("[CLS]", (0,), (), 0, True),
            Span("x", (1,), (0, 1), 0, False),
            Span("y", (2, 3), (2,), 0, False),
        )
    )
    a = np.array([[1.0, 0, 0, 0], [0.4, 0.1, 0.2, 0.3], [0.4, 0.4, 0.1, 0.1], [0.0, 0.0, 0.5, 0.5]])
    # The two rows of "y" are averaged, and its two columns added. [CLS] is only a key, because B lacks [CLS].
    np.testing.assert_allclose(spans.merged(a, 0), [[0.4, 0.1, 0.5], [0.2, 0.2, 0.6]])
    b = np.array([[0.2, 0.3, 0.5], [0.6, 0.0, 0.4], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(spans.merged(b, 1), [[0.0, 0.55, 0.45], [0.0, 0.2, 0.8]])
    np.testing.assert_allclose(spans.merged(np.stack([b, b]), 1).sum(axis=-1), 1)
    with pytest.raises(ShapeError):
        spans.merged(a, 1)


def by_characters(a: Encoding, b: Encoding, text: str, segment: int = 0) -> list[tuple[set[int], set[int]]]:
    """Return the tokens of each common span, computed with a loop over characters."""
    tokens = [
        [token for token in side.tokens if not token.special and token.segment == segment] for side in (a, b)
    ]
    cuts = [
        place
        for place in range(len(text) + 1)
        if not any(token.start < place < token.end for side in tokens for token in side)
    ]
    groups = []
    for start, end in pairwise(cuts):
        positions = [{token.position for token in side if start <= token.start < end} for side in tokens]
        if any(positions):
            groups.append((positions[0], positions[1]))
    return groups


FAMILIES = ("bert", "roberta", "albert", "eurobert")
TEXTS = (f"{TEXT} {PAIR}", "naïve café – 東京 2024.", "It isn't  easy\n[MASK] <mask> [SEP] </s> 🙂🙂 x")


@pytest.mark.parametrize("text", TEXTS)
def test_spans_of_two_tokenizers_cover_same_characters(family: Opened, text: str) -> None:
    merged = 0
    for family_a, family_b in combinations(FAMILIES, 2):
        a, b = family(family_a).encode(text), family(family_b).encode(text)
        spans = common_spans(a, b)
        inner = [span for span in spans.spans if not span.special]
        assert all(span.shared for span in inner)
        expected = [pair for pair in by_characters(a, b, text) if all(pair)]
        actual = [({*span.a}, {*span.b}) for span in inner]
        # Tokens that occur on only one side are added to the next span. Otherwise, the spans equal the
        # reference.
        assert len(actual) == len(expected)
        assert all(
            actual_a >= expected_a and actual_b >= expected_b
            for (actual_a, actual_b), (expected_a, expected_b) in zip(actual, expected, strict=True)
        )
        assert "".join("".join(span.text for span in inner).split()) in "".join(text.split())
        merged += sum(len(span.a) > 1 or len(span.b) > 1 for span in inner)
    assert merged


def test_identical_tokenization_has_one_span_per_token(family: Opened) -> None:
    a, b = family("roberta").encode("東京", PAIR), family("roberta").encode("東京", PAIR)
    spans = common_spans(a, b)
    assert (
        [span.a for span in spans.spans] == [span.b for span in spans.spans] == [(n,) for n in range(len(a))]
    )


def test_different_texts_are_refused(family: Opened) -> None:
    a, b = family("bert"), family("roberta")
    with pytest.raises(SelectionError, match="texts of the two models differ"):
        common_spans(a.encode("we left"), b.encode("we left it"))
    long = [model.encode(LONG * 10, truncate=True) for model in (a, b)]
    with pytest.raises(
        SelectionError, match=r"Truncation removed [\d,]+ tokens in A and \d+ in B.*Shorten the text"
    ):
        common_spans(*long)
    with pytest.raises(ShapeError, match="must cover all tokens in order"):
        CommonSpans((Span("x", (1,), (0,), 0, False), Span("y", (0,), (1,), 0, False)))
    with pytest.raises(ShapeError, match="have no common span"):
        CommonSpans((Span("x", (0,), (), 0, False),))
