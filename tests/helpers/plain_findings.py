"""Reference implementation of `Highlights`, which computes values with loops over the raw model's outputs."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from functools import cached_property
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from tests.helpers.raw import Raw

SIGNS = set(string.punctuation)


def cosine(a: Any, b: Any) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def is_sign(token: Token) -> bool:
    """Return whether a token is punctuation: ASCII symbols or Unicode category P."""
    text = str(token).removeprefix("##")
    return not token.special and all(item in SIGNS or unicodedata.category(item)[0] == "P" for item in text)


def quote(tokens: list[Token], token: Token) -> str:
    """Return a token in quotation marks, with its position if several of `tokens` have the same text."""
    many = sum(other.display == token.display for other in tokens) > 1
    return f"“{token.display}” ({token.position})" if many else f"“{token.display}”"


TARGETS = {
    "previous": "the previous token",
    "next": "the next token",
    "self": "the token itself",
    "same_token": "other occurrences of the same token",
    "same_word": "the rest of the same word",
    "punctuation": "punctuation",
    "other_segment": "the other segment",
}

LABEL_SHARE = 0.5
"""Share of attention that makes a head specialized, or a token an attention sink (docs/methods.md)."""


def percent(share: float) -> str:
    percentage = 100 * share
    return f"{percentage:.1f}%" if share < 0.0995 else f"{percentage:.0f}%"


class Reference(NamedTuple):
    """A value, the sentence that states it, and whether the value is large enough to be reported."""

    value: float
    sentence: str
    clear: bool = True


class Read:
    """The outputs of the raw model for a text, and the values derived from them."""

    def __init__(self, raw: Raw, checkpoint: Checkpoint, text: str, pair: str | None = None) -> None:
        self.encoding = checkpoint.encode(text, pair)
        self.unknown = checkpoint.tokenizer.unk_token_id
        output = raw.run(self.encoding)
        self.attention = np.stack([attention[0].numpy() for attention in output.attentions])
        self.states = np.stack([hidden_state[0].numpy() for hidden_state in output.hidden_states])
        self.tokens = self.encoding.tokens
        self.count = len(self.tokens)
        self.paired = pair is not None
        self.own = [t for t in self.tokens if not t.special and not is_sign(t)]

    def shares(self, counts: Callable[[int, int], bool]) -> np.ndarray:
        """Return each head's attention on the keys j with `counts(i, j)`, as a mean over the queries i."""
        result = np.zeros(self.attention.shape[:2])
        for i, j in product(range(self.count), repeat=2):
            if counts(i, j):
                result += self.attention[:, :, i, j]
        return result / self.count

    @property
    def conditions(self) -> dict[str, Callable[[int, int], bool]]:
        """Return, by name of a target, a function (i, j) → whether token j is this target of token i."""
        tokens = self.tokens
        return {
            "previous": lambda i, j: j == i - 1,
            "next": lambda i, j: j == i + 1,
            "self": lambda i, j: j == i,
            "same_token": lambda i, j: j != i and str(tokens[i]) == str(tokens[j]),
            "same_word": lambda i, j: (
                i != j
                and tokens[i].word == tokens[j].word is not None
                and tokens[i].segment == tokens[j].segment
            ),
            "punctuation": lambda _, j: is_sign(tokens[j]),
            "other_segment": lambda i, j: tokens[i].segment != tokens[j].segment,
        }

    @cached_property
    def mean_shares(self) -> dict[str, tuple[np.ndarray, int]]:
        """Return, by name of a target, each head's share of attention on the target, and a token count.

        The share is a mean over the tokens that have such a target. The count is the number of these tokens.
        """
        result = {}
        for name, fits in self.conditions.items():
            having = sum(any(fits(i, j) for j in range(self.count)) for i in range(self.count))
            if having:
                result[name] = self.shares(fits) * self.count / having, having
        return result

    def specialized_head(self, name: str) -> Reference | None:
        if name not in self.mean_shares:
            return None
        shares, having = self.mean_shares[name]
        layer, head = np.argwhere(shares == shares.max())[0]
        over = "" if having == self.count else f" (mean over the {having} tokens that have such a target)"
        value = float(shares.max())
        of_head = max(float(item[layer, head]) for item, _ in self.mean_shares.values())
        return Reference(
            value,
            f"Head {layer + 1}.{head + 1} puts {percent(value)} of its attention on {TARGETS[name]}{over}.",
            LABEL_SHARE <= value == of_head,
        )

    def attention_sink(self, places: list[int], kind: str) -> Reference:
        means = self.shares(lambda _, j: j in places).mean(axis=1)
        even = len(places) / self.count
        return Reference(
            float(means.max() - even),
            f"Layer {means.argmax() + 1} puts {percent(means.max())} of its attention on {kind} (mean over "
            f"heads and tokens; an equal share would be {percent(even)}).",
            bool(means.max() >= LABEL_SHARE),
        )

    def vector_change(self) -> Reference | None:
        if not self.own:
            return None
        curves = [
            [cosine(self.states[0, t.position], state[t.position]) for state in self.states] for t in self.own
        ]
        token, curve = min(zip(self.own, curves, strict=True), key=lambda pair: pair[1][-1])
        last = len(curve) - 1
        step = max(range(1, last + 1), key=lambda layer: curve[layer - 1] - curve[layer])
        mean = sum(curve[-1] for curve in curves) / len(curves)
        return Reference(
            1 - curve[-1],
            f"The vector of {quote(self.own, token)} changes most: its cosine similarity to the input vector "
            f"is {curve[-1]:.2f} after layer {last} (mean over the tokens of this text: {mean:.2f}). The "
            f"largest change is in layer {step}, from {curve[step - 1]:.2f} to {curve[step]:.2f}.",
        )

    def pairs(self, fit: Callable[[Token, Token], bool]) -> list[tuple[float, Token, Token]]:
        """Return the cosine after the last layer, and the tokens, of each token pair that `fit` accepts.

        If the input is a text pair, the two tokens are from different segments.
        """
        return [
            (cosine(self.states[-1, a.position], self.states[-1, b.position]), a, b)
            for a, b in combinations(self.own, 2)
            if fit(a, b) and (not self.paired or a.segment != b.segment)
        ]

    def repeated_token(self) -> Reference | None:
        result = self.pairs(lambda a, b: a.id == b.id)
        if not result:
            return None
        minimum, a, b = min(result, key=lambda candidate: candidate[0])
        mean = sum(distance for distance, _, _ in result) / len(result)
        names = f"{quote(self.own, a)} and {quote(self.own, b)}"
        return Reference(1 - minimum, same_token(names, minimum, len(self.states) - 1, mean, len(result)))

    def similar_tokens(self) -> Reference | None:
        result = self.pairs(lambda a, b: a.id != b.id and (a.segment, a.word) != (b.segment, b.word))
        if not result:
            return None
        maximum, a, b = max(result, key=lambda candidate: candidate[0])
        mean = sum(distance for distance, _, _ in result) / len(result)
        return Reference(
            maximum,
            f"{quote(self.own, a)} and {quote(self.own, b)} are the most similar tokens: cosine similarity "
            f"{maximum:.2f} after layer {len(self.states) - 1} (mean over all pairs of different tokens: "
            f"{mean:.2f}).",
        )

    def unusual_head(self) -> Reference:
        best = (-1.0, 0, 0)
        for layer, heads in enumerate(self.attention):
            mean = sum(heads) / len(heads)
            for head, weights in enumerate(heads):
                rows = [
                    sum(abs(entry - other) for entry, other in zip(*two, strict=True)) / 2
                    for two in zip(weights.tolist(), mean.tolist(), strict=True)
                ]
                best = max(best, (sum(rows) / self.count, -layer, -head))
        value, layer, head = best
        first, *separators = [t.position for t in self.tokens if t.special]
        shares = {TARGETS[name]: self.shares(fits)[-layer, -head] for name, fits in self.conditions.items()}
        shares["the first token"] = self.shares(lambda _, j: j == first)[-layer, -head]
        shares["separators"] = self.shares(lambda _, j: j in separators)[-layer, -head]
        target, share = max(shares.items(), key=lambda item: item[1])
        focus = f": it puts {percent(share)} of its attention on {target}" if share >= LABEL_SHARE else ""
        return Reference(
            value,
            f"Head {1 - layer}.{1 - head} is the most unusual head of its layer{focus} (total variation from "
            f"the layer mean: {value:.2f}).",
        )

    def words(self) -> list[list[int]]:
        """Return the token positions of each word and each special token, in order."""
        result: list[list[int]] = []
        for token in self.tokens:
            before = self.tokens[result[-1][-1]] if result else None
            same = before is not None and token.word is not None
            same = same and (before.word, before.segment) == (token.word, token.segment)
            result = [*result[:-1], [*result[-1], token.position]] if same else [*result, [token.position]]
        return result

    def word_pair(self) -> Reference | None:
        words = self.words()
        real = [n for n, places in enumerate(words) if not self.tokens[places[0]].special]
        result = {n for n in real if not all(is_sign(self.tokens[i]) for i in words[n])}
        best: tuple[float, Any] = (-np.inf, None)
        for layer, head in product(*map(range, self.attention.shape[:2])):
            rows = self.attention[layer, head].tolist()
            weight = {
                (q, k): sum(sum(rows[i][j] for j in words[k]) for i in words[q]) / len(words[q])
                for q, k in product(real, repeat=2)
                if q != k
            }
            far: dict[int, list[float]] = {}
            expected: dict[int, list[float]] = {}
            for (q, k), value in weight.items():
                far.setdefault(k - q, []).append(value)
                expected.setdefault(k, []).append(value)
            for (q, k), value in weight.items():
                if q in result and k in result and len(far[k - q]) > 1 and len(expected[k]) > 1:
                    as_far, as_wanted = (
                        (sum(item) - value) / (len(item) - 1) for item in (far[k - q], expected[k])
                    )
                    beyond = value - max(as_far, as_wanted)
                    if beyond > best[0]:
                        best = (beyond, (layer, head, q, k, value, as_far, as_wanted))
        if best[1] is None:
            return None
        layer, head, q, k, value, as_far, as_wanted = best[1]
        names = [self.quote_word(places) for places in words]
        asking, question = (
            f"“{names[n]}” ({words[n][0]})" if names.count(names[n]) > 1 else f"“{names[n]}”" for n in (q, k)
        )
        return Reference(
            best[0],
            f"In head {layer + 1}.{head + 1}, {asking} puts {percent(value)} of its attention on {question}. "
            f"Words at the same distance receive {percent(as_far)} on average, and other words put "
            f"{percent(as_wanted)} on {question}.",
        )

    def quote_word(self, places: list[int]) -> str:
        """Return a word as it is written in the text, or the name of a special token."""
        first, last = self.tokens[places[0]], self.tokens[places[-1]]
        texts = (self.encoding.text, self.encoding.pair or "")
        return str(first) if first.special else texts[first.segment][first.start : last.end]

    def split_words(self) -> Reference | None:
        words = [places for places in self.words() if not self.tokens[places[0]].special]
        if not words:
            return None
        maximum = max(words, key=len)
        split = [places for places in words if len(places) > 1]
        pieces = [self.tokens[i].display for i in maximum]
        more = f" and {len(pieces) - 5} more" if len(pieces) > 5 else ""
        word = self.quote_word(maximum)
        return Reference(
            len(maximum),
            f"{len(split)} of {len(words)} words {'is' if len(split) == 1 else 'are'} split into subword "
            f"tokens. “{word}” has the most ({len(maximum)}): {', '.join(pieces[:5])}{more}.",
            bool(split),
        )

    def unknown_tokens(self) -> Reference:
        result = [t for t in self.tokens if t.id == self.unknown and not t.special]
        text_form = ", ".join(f"“{self.quote_word([t.position])}”" for t in result[:5])
        verb = "is" if len(result) == 1 else "are"
        return Reference(
            len(result),
            f"{len(result)} of {self.count} tokens {verb} not in the vocabulary and {verb} read as [UNK]: "
            f"{text_form}.",
            bool(result),
        )

    def highlights(self) -> dict[str, Reference]:
        """Return the reference values of the text, by measure."""
        job = (
            "share of a head's attention on {} (mean over the tokens that have such a target; maximum "
            "over heads)"
        )
        sink = "attention on {} beyond an equal share (mean over heads and tokens; maximum over layers)"
        separators = [t.position for t in self.tokens if t.special and t.position > 0]
        last = "after the last layer"
        meeting = (
            "attention from word to word beyond what their distance or the key word alone explains (maximum)"
        )
        result = {
            **{job.format(target): self.specialized_head(name) for name, target in TARGETS.items()},
            sink.format("the first token"): self.attention_sink([0], "the first token, [CLS]"),
            sink.format("separators"): self.attention_sink(separators, "the separator [SEP]"),
            meeting: self.word_pair(),
            f"cosine distance between a token's input vector and its vector {last} (maximum over tokens)": (
                self.vector_change()
            ),
            f"cosine similarity of two different tokens {last} (maximum)": self.similar_tokens(),
            f"cosine distance between two occurrences of a token {last} (maximum)": self.repeated_token(),
            "total variation between a head's attention and the mean of its layer (maximum over heads)": (
                self.unusual_head()
            ),
            "subword tokens of a word (maximum over words)": self.split_words(),
            "tokens that are not in the vocabulary": self.unknown_tokens(),
        }
        return {measure: item for measure, item in result.items() if item is not None}


def text_similarity(a: Read, b: Read) -> Reference:
    """Return the reference for the cosine of two texts and the token pair that contributes most."""
    means = [item.states[-1].mean(axis=0) for item in (a, b)]
    size = np.sqrt(means[0] @ means[0]) * np.sqrt(means[1] @ means[1]) * a.count * b.count
    own = [[t for t in item.tokens if not t.special] for item in (a, b)]
    maximum, i, j = max(
        (float(a.states[-1, i.position] @ b.states[-1, j.position] / size), -m, -n)
        for (m, i), (n, j) in product(enumerate(own[0]), enumerate(own[1]))
    )
    first, second = (quote(tokens, tokens[-n]) for tokens, n in zip(own, (i, j), strict=True))
    return Reference(
        cosine(*means),
        f"The cosine similarity of A and B is {cosine(*means):.2f}. {first} of A and {second} of B "
        f"contribute most to it: {maximum:.3f} (special tokens excluded).",
    )


def same_token(names: str, value: float, layer: int, mean: float, pairs: int) -> str:
    """Return the sentence about the two least similar occurrences of a token.

    Args:
        names: the two occurrences, quoted.
        value: their cosine after `layer`.
        mean: mean cosine of all occurrences of a token in pairs.
        pairs: number of pairs.
    """
    if pairs == 1:
        return f"{names} are the same token, with a cosine similarity of {value:.2f} after layer {layer}."
    return (
        f"Of all repeated tokens, {names} differ most: cosine similarity {value:.2f} after layer {layer} "
        f"(mean over all pairs: {mean:.2f})."
    )


def shared_token(a: Read, b: Read) -> Reference | None:
    """Return the expected finding for the shared token whose two vectors are least similar.

    If the texts share no token, the result is None.
    """
    result = [
        (cosine(a.states[-1, i.position], b.states[-1, j.position]), i, j)
        for i, j in product(a.own, b.own)
        if i.id == j.id
    ]
    if not result:
        return None
    minimum, i, j = min(result, key=lambda candidate: candidate[0])
    mean = sum(distance for distance, _, _ in result) / len(result)
    names = f"{quote(a.own, i)} of A and {quote(b.own, j)} of B"
    return Reference(1 - minimum, same_token(names, minimum, len(a.states) - 1, mean, len(result)))
