"""What the overview finds in a text, computed again from the raw model by plain loops, and put into words."""

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
    """Whether a token is made of signs: those of ASCII, or what Unicode calls punctuation."""
    text = str(token).removeprefix("##")
    return not token.special and all(one in SIGNS or unicodedata.category(one)[0] == "P" for one in text)


def named(tokens: list[Token], one: Token) -> str:
    """As a sentence has it: with its position where another is written the same."""
    many = sum(token.display == one.display for token in tokens) > 1
    return f"“{one.display}” ({one.position})" if many else f"“{one.display}”"


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
    return f"{percentage:.1f} %" if share < 0.0995 else f"{percentage:.0f} %"


class Told(NamedTuple):
    """A number, the sentence that says it, and whether it is worth the sentence."""

    value: float
    said: str
    clear: bool = True


class Read:
    """What the raw model makes of a text, as arrays that plain loops go over."""

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
        """Of each head's attention, how much goes from i to j where that counts."""
        found = np.zeros(self.attention.shape[:2])
        for i, j in product(range(self.count), repeat=2):
            if counts(i, j):
                found += self.attention[:, :, i, j]
        return found / self.count

    @property
    def conditions(self) -> dict[str, Callable[[int, int], bool]]:
        """For each target, whether attention from i to j counts."""
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
    def jobs(self) -> dict[str, tuple[np.ndarray, int]]:
        """For each target that some tokens have: each head's mean over those tokens, and their number."""
        found = {}
        for name, fits in self.conditions.items():
            having = sum(any(fits(i, j) for j in range(self.count)) for i in range(self.count))
            if having:
                found[name] = self.shares(fits) * self.count / having, having
        return found

    def job(self, name: str) -> Told | None:
        if name not in self.jobs:
            return None
        shares, having = self.jobs[name]
        layer, head = np.argwhere(shares == shares.max())[0]
        over = "" if having == self.count else f" (mean over the {having} tokens that have one)"
        value = float(shares.max())
        of_head = max(float(one[layer, head]) for one, _ in self.jobs.values())
        return Told(
            value,
            f"Head {layer + 1}.{head + 1} puts {percent(value)} of its attention on {TARGETS[name]}{over}.",
            LABEL_SHARE <= value == of_head,
        )

    def rest(self, places: list[int], what: str) -> Told:
        means = self.shares(lambda _, j: j in places).mean(axis=1)
        even = len(places) / self.count
        return Told(
            float(means.max() - even),
            f"Layer {means.argmax() + 1} puts {percent(means.max())} of its attention on {what} (mean over "
            f"heads and tokens; an equal share would be {percent(even)}).",
            bool(means.max() >= LABEL_SHARE),
        )

    def moved(self) -> Told | None:
        if not self.own:
            return None
        curves = [
            [cosine(self.states[0, t.position], state[t.position]) for state in self.states] for t in self.own
        ]
        token, curve = min(zip(self.own, curves, strict=True), key=lambda one: one[1][-1])
        last = len(curve) - 1
        step = max(range(1, last + 1), key=lambda layer: curve[layer - 1] - curve[layer])
        mean = sum(curve[-1] for curve in curves) / len(curves)
        return Told(
            1 - curve[-1],
            f"The vector of {named(self.own, token)} changes most: its cosine similarity to the input vector "
            f"is {curve[-1]:.2f} after layer {last} (mean over the tokens of this text: {mean:.2f}). The "
            f"largest change is in layer {step}, from {curve[step - 1]:.2f} to {curve[step]:.2f}.",
        )

    def pairs(self, fit: Callable[[Token, Token], bool]) -> list[tuple[float, Token, Token]]:
        """Cosines, after the last layer, of tokens of the text; of two segments one of each."""
        return [
            (cosine(self.states[-1, a.position], self.states[-1, b.position]), a, b)
            for a, b in combinations(self.own, 2)
            if fit(a, b) and (not self.paired or a.segment != b.segment)
        ]

    def twice(self) -> Told | None:
        found = self.pairs(lambda a, b: a.id == b.id)
        if not found:
            return None
        least, a, b = min(found, key=lambda one: one[0])
        mean = sum(one for one, _, _ in found) / len(found)
        names = f"{named(self.own, a)} and {named(self.own, b)}"
        return Told(1 - least, same_token(names, least, len(self.states) - 1, mean, len(found)))

    def twins(self) -> Told | None:
        found = self.pairs(lambda a, b: a.id != b.id and (a.segment, a.word) != (b.segment, b.word))
        if not found:
            return None
        most, a, b = max(found, key=lambda one: one[0])
        mean = sum(one for one, _, _ in found) / len(found)
        return Told(
            most,
            f"{named(self.own, a)} and {named(self.own, b)} are the most similar tokens: cosine similarity "
            f"{most:.2f} after layer {len(self.states) - 1} (mean over all pairs of different tokens: "
            f"{mean:.2f}).",
        )

    def apart(self) -> Told:
        best = (-1.0, 0, 0)
        for layer, heads in enumerate(self.attention):
            mean = sum(heads) / len(heads)
            for head, weights in enumerate(heads):
                rows = [
                    sum(abs(one - other) for one, other in zip(*two, strict=True)) / 2
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
        return Told(
            value,
            f"Head {1 - layer}.{1 - head} is the most unusual head of its layer{focus} (total variation from "
            f"the layer mean: {value:.2f}).",
        )

    def words(self) -> list[list[int]]:
        """Positions of the words of the text, and of special tokens, in order."""
        found: list[list[int]] = []
        for token in self.tokens:
            before = self.tokens[found[-1][-1]] if found else None
            same = before is not None and token.word is not None
            same = same and (before.word, before.segment) == (token.word, token.segment)
            found = [*found[:-1], [*found[-1], token.position]] if same else [*found, [token.position]]
        return found

    def meeting(self) -> Told | None:
        words = self.words()
        real = [n for n, places in enumerate(words) if not self.tokens[places[0]].special]
        told = {n for n in real if not all(is_sign(self.tokens[i]) for i in words[n])}
        best: tuple[float, Any] = (-np.inf, None)
        for layer, head in product(*map(range, self.attention.shape[:2])):
            rows = self.attention[layer, head].tolist()
            weight = {
                (q, k): sum(sum(rows[i][j] for j in words[k]) for i in words[q]) / len(words[q])
                for q, k in product(real, repeat=2)
                if q != k
            }
            far: dict[int, list[float]] = {}
            wanted: dict[int, list[float]] = {}
            for (q, k), value in weight.items():
                far.setdefault(k - q, []).append(value)
                wanted.setdefault(k, []).append(value)
            for (q, k), value in weight.items():
                if q in told and k in told and len(far[k - q]) > 1 and len(wanted[k]) > 1:
                    as_far, as_wanted = (
                        (sum(one) - value) / (len(one) - 1) for one in (far[k - q], wanted[k])
                    )
                    beyond = value - max(as_far, as_wanted)
                    if beyond > best[0]:
                        best = (beyond, (layer, head, q, k, value, as_far, as_wanted))
        if best[1] is None:
            return None
        layer, head, q, k, value, as_far, as_wanted = best[1]
        names = [self.written(places) for places in words]
        asking, asked = (
            f"“{names[n]}” ({words[n][0]})" if names.count(names[n]) > 1 else f"“{names[n]}”" for n in (q, k)
        )
        return Told(
            best[0],
            f"In head {layer + 1}.{head + 1}, {asking} puts {percent(value)} of its attention on {asked}. "
            f"Words at the same distance receive {percent(as_far)} on average, and other words put "
            f"{percent(as_wanted)} on {asked}.",
        )

    def written(self, places: list[int]) -> str:
        """A word as it stands in the text; a special token by its name."""
        first, last = self.tokens[places[0]], self.tokens[places[-1]]
        texts = (self.encoding.text, self.encoding.pair or "")
        return str(first) if first.special else texts[first.segment][first.start : last.end]

    def pieces(self) -> Told | None:
        words = [places for places in self.words() if not self.tokens[places[0]].special]
        if not words:
            return None
        most = max(words, key=len)
        split = [places for places in words if len(places) > 1]
        pieces = [self.tokens[i].display for i in most]
        more = f" and {len(pieces) - 5} more" if len(pieces) > 5 else ""
        word = self.written(most)
        return Told(
            len(most),
            f"{len(split)} of {len(words)} words {'is' if len(split) == 1 else 'are'} split into subword "
            f"tokens. “{word}” has the most ({len(most)}): {', '.join(pieces[:5])}{more}.",
            bool(split),
        )

    def not_known(self) -> Told:
        found = [t for t in self.tokens if t.id == self.unknown and not t.special]
        written = ", ".join(f"“{self.written([t.position])}”" for t in found[:5])
        verb = "is" if len(found) == 1 else "are"
        return Told(
            len(found),
            f"{len(found)} of {self.count} tokens {verb} not in the vocabulary and {verb} read as [UNK]: "
            f"{written}.",
            bool(found),
        )

    def told(self) -> dict[str, Told]:
        """Every number of the text by what it measures, with its sentence."""
        job = "share of a head's attention on {} (mean over the tokens that have one; maximum over heads)"
        sink = "attention on {} beyond an equal share (mean over heads and tokens; maximum over layers)"
        separators = [t.position for t in self.tokens if t.special and t.position > 0]
        last = "after the last layer"
        meeting = (
            "attention from word to word beyond what their distance or the key word alone explains (maximum)"
        )
        found = {
            **{job.format(target): self.job(name) for name, target in TARGETS.items()},
            sink.format("the first token"): self.rest([0], "the first token, [CLS]"),
            sink.format("separators"): self.rest(separators, "the separator [SEP]"),
            meeting: self.meeting(),
            f"cosine distance between a token's input vector and its vector {last} (maximum over tokens)": (
                self.moved()
            ),
            f"cosine similarity of two different tokens {last} (maximum)": self.twins(),
            f"cosine distance between two occurrences of a token {last} (maximum)": self.twice(),
            "total variation between a head's attention and the mean of its layer (maximum over heads)": (
                self.apart()
            ),
            "subword tokens of a word (maximum over words)": self.pieces(),
            "tokens that are not in the vocabulary": self.not_known(),
        }
        return {measure: one for measure, one in found.items() if one is not None}


def alike(a: Read, b: Read) -> Told:
    """The cosine of two texts, mean of their vectors, and the pair of tokens that adds most to it."""
    means = [one.states[-1].mean(axis=0) for one in (a, b)]
    size = np.sqrt(means[0] @ means[0]) * np.sqrt(means[1] @ means[1]) * a.count * b.count
    own = [[t for t in one.tokens if not t.special] for one in (a, b)]
    most, i, j = max(
        (float(a.states[-1, i.position] @ b.states[-1, j.position] / size), -m, -n)
        for (m, i), (n, j) in product(enumerate(own[0]), enumerate(own[1]))
    )
    first, second = (named(tokens, tokens[-n]) for tokens, n in zip(own, (i, j), strict=True))
    return Told(
        cosine(*means),
        f"The cosine similarity of A and B is {cosine(*means):.2f}. {first} of A and {second} of B "
        f"contribute most to it: {most:.3f} (special tokens excluded).",
    )


def same_token(names: str, value: float, layer: int, mean: float, pairs: int) -> str:
    """The sentence on two occurrences of a token."""
    if pairs == 1:
        return f"{names} are the same token, with a cosine similarity of {value:.2f} after layer {layer}."
    return (
        f"Of all repeated tokens, {names} differ most: cosine similarity {value:.2f} after layer {layer} "
        f"(mean over such pairs: {mean:.2f})."
    )


def shared(a: Read, b: Read) -> Told | None:
    """The token of both whose vectors are least alike."""
    found = [
        (cosine(a.states[-1, i.position], b.states[-1, j.position]), i, j)
        for i, j in product(a.own, b.own)
        if i.id == j.id
    ]
    if not found:
        return None
    least, i, j = min(found, key=lambda one: one[0])
    mean = sum(one for one, _, _ in found) / len(found)
    names = f"{named(a.own, i)} of A and {named(b.own, j)} of B"
    return Told(1 - least, same_token(names, least, len(a.states) - 1, mean, len(found)))
