"""Small treebanks."""

from __future__ import annotations

from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences

Row = tuple[str, str, int, str]
"""A word: form, tag, index of its head (from 1; 0 for the root), and relation to its head."""


def conllu(*sentences: tuple[Row, ...], genre: str = "log") -> str:
    """Return a CoNLL-U file of sentences with spaces between all words."""
    return "".join(_sentence(rows, genre) for rows in sentences)


def _sentence(rows: tuple[Row, ...], genre: str) -> str:
    lines = [f"# genre = {genre}"]
    for number, (form, tag, head, relation) in enumerate(rows, 1):
        lines.append("\t".join([str(number), form, "_", tag, "_", "_", str(head), relation, "_", "_"]))
    return "\n".join([*lines, "", ""])


def read(text: str) -> tuple[TaggedSentence, ...]:
    """Return the sentences of a treebank."""
    return parse_tagged_sentences(text.encode(), "a.conllu")


def _clause(determiner: str, subject: str, verb: str, other: str, object_: str) -> tuple[Row, ...]:
    return (
        (determiner, "DET", 2, "det"),
        (subject, "NOUN", 3, "nsubj"),
        (verb, "VERB", 0, "root"),
        (other, "DET", 5, "det"),
        (object_, "NOUN", 3, "obj"),
        (".", "PUNCT", 3, "punct"),
    )


_SAILING = (
    _clause("The", "boat", "crosses", "the", "river"),
    _clause("A", "sailor", "repaired", "the", "bridge"),
    (("Nobody", "PRON", 2, "nsubj:outer"), ("slept", "VERB", 0, "root"), ("!", "PUNCT", 2, "punct")),
)
_SLEEPING = (
    _clause("Every", "engineer", "reads", "a", "map"),
    (("Night", "NOUN", 2, "nsubj"), ("falls", "VERB", 0, "root"), ("slowly", "ADV", 2, "advmod")),
)

SAILING_FILE = conllu(*_SAILING[:2]) + conllu(_SAILING[2], genre="letter")
SLEEPING_FILE = conllu(*_SLEEPING)
TAGGED_FILE = "".join(
    f"{form} {tag}\n" + "\n" * (form in ".!")
    for rows in (*_SAILING, *_SLEEPING[:1])
    for form, tag, *_ in rows
)

SAILING, SLEEPING = read(SAILING_FILE), read(SLEEPING_FILE)
TAGGED = parse_tagged_sentences(TAGGED_FILE.encode(), "a.conll")
