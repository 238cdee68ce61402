"""Example texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.view_files import TextInput, ViewFile

Relation = Literal["compare", "pair"]


@dataclass(frozen=True)
class Example:
    """An example with one or two texts.

    Attributes:
        a, b: the texts; ``b`` may be empty.
        relation: whether B is a separate text to compare, or the second segment of A's input.
    """

    title: str
    a: str
    b: str = ""
    relation: Relation = "compare"


EXAMPLES = (
    Example(
        "Pronoun: what was full, what was empty?",
        "I poured water from the bottle into the cup until it was full.",
        "I poured water from the bottle into the cup until it was empty.",
    ),
    Example(
        "One word, two senses: Python",
        "The coolest programming language is Python",
        "Python can be aggressive sometimes during hunting",
    ),
    Example(
        "Paraphrase: different words, same meaning",
        "President greets the press in Chicago",
        "Obama speaks to media in Illinois",
    ),
    Example(
        "A passage with a repeated word",
        "Almost before we knew it, we had left the ground. The unknown holds its grounds.",
    ),
    Example(
        "A question and its context, as a pair",
        "Where do emperor penguins keep their egg?",
        "Emperor penguins balance their only egg on their feet and cover it with a fold of skin.",
        "pair",
    ),
    Example(
        "A name that splits into subword tokens", "Mehdi Wolpertinger moved to Tallahassee unexpectedly."
    ),
)

CONTEXT: tuple[tuple[str, str], ...] = (
    ("The coolest programming language is Python", "Python"),
    ("Python can be aggressive sometimes during hunting", "Python"),
    ("The snake swallowed its prey whole", "snake"),
    ("She learned programming at school", "programming"),
)
"""Sentences and the word that is selected in each: Python (language), Python (snake), snake, programming."""

SENTENCES = (
    "Global warming is happening",
    "The weather is not good to play golf today",
    "Never compare an apple to an orange",
    "Apple and orange are completely different from each other",
    "Ocean temperature is rising rapidly",
    "AI has taken the world by storm",
    "It is rainy today so we should postpone our golf game",
    "I love reading books than watching TV",
    "People say I am a bookworm, in fact, I do not want to waste my time on TV",
    "AI has transformed the way the world works",
)
"""Ten sentences on five topics."""


def report_draft() -> Draft:
    """Return a draft with three views of the first example."""
    a, b = EXAMPLES[0].a, EXAMPLES[0].b
    texts = (TextInput(a), TextInput(b))
    address = {"a": a, "b": b}
    return Draft(
        "Example: full or empty?",
        (
            DraftEntry(
                ViewFile("MinimalPair", texts=texts, page="compare", address=address),
                "The two sentences differ in one word. Head {{1, head}} of layer {{1, layer}} has the "
                "largest change of attention: a total variation of {{1, total_variation}}.",
            ),
            DraftEntry(
                ViewFile("Similarity", texts=texts, page="similarity", address=address),
                "The cosine of every token of one sentence with every token of the other, in the last layer.",
            ),
            DraftEntry(
                ViewFile(
                    "Attention", texts=texts[:1], page="attention", address=address | {"show": "heatmap"}
                ),
                "The mean attention of all heads of the last layer. The mean hides what individual heads do.",
            ),
        ),
    )
