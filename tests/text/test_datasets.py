"""Test the treebank that is part of the package."""

from __future__ import annotations

import pytest

from bert_probe.text.datasets import sample_treebank
from bert_probe.text.tagged_sentences import ROOT, TaggedSentence

TRAINING, HELD_OUT = sample_treebank()
TAGS = {
    *("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM"),
    *("PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X"),
}
"""The universal parts of speech."""
TAGS_BY_RELATION = {
    "amod": {"ADJ"},
    "aux": {"AUX"},
    "aux:pass": {"AUX"},
    "case": {"ADP"},
    "cc": {"CCONJ"},
    "cop": {"AUX"},
    "det": {"DET"},
    "iobj": {"NOUN"},
    "mark": {"PART", "SCONJ"},
    "nmod:poss": {"PRON"},
    "nsubj": {"NOUN", "PRON"},
    "nsubj:pass": {"NOUN"},
    "nummod": {"NUM"},
    "obj": {"NOUN", "PROPN"},
    "obl": {"NOUN", "PROPN"},
    "obl:agent": {"NOUN"},
    "punct": {"PUNCT"},
}
FUNCTION_WORDS = {"aux", "aux:pass", "case", "cc", "cop", "det", "mark", "punct"}
"""Dependency relations of function words and punctuation, which have no dependents."""


def path_to_root(sentence: TaggedSentence, word: int) -> list[int]:
    path = [word]
    while sentence.heads[path[-1]] != ROOT:
        path.append(sentence.heads[path[-1]])
        assert len(path) <= len(sentence.words), "a cycle"
    return path


@pytest.mark.parametrize("sentence", [*TRAINING, *HELD_OUT], ids=lambda sentence: sentence.text)
def test_sentence_is_a_tree_in_universal_dependencies(sentence: TaggedSentence) -> None:
    assert " ".join(sentence.words[:-1]).replace(" ,", ",") + "." == sentence.text
    assert sentence.heads.count(ROOT) == 1
    assert sentence.relations[sentence.heads.index(ROOT)] == "root"
    assert TAGS.issuperset(sentence.tags)
    for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        path_to_root(sentence, word)
        assert sentence.tags[word] in TAGS_BY_RELATION.get(relation, TAGS)
        if head != ROOT:
            assert sentence.relations[head] not in FUNCTION_WORDS
            between = range(min(head, word) + 1, max(head, word))
            assert all(head in path_to_root(sentence, other) for other in between), "projective"


def test_held_out_sentences_are_new_and_their_relations_are_not() -> None:
    assert (len(TRAINING), len(HELD_OUT)) == (16, 8)
    assert not {sentence.text for sentence in TRAINING} & {sentence.text for sentence in HELD_OUT}
    relations = [{name for sentence in part for name in sentence.relations} for part in (TRAINING, HELD_OUT)]
    assert relations[1] <= relations[0]
