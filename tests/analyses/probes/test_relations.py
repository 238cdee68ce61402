"""Test relations of a treebank in attention heads: parity with loops over raw attention, and known cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bert_probe import Relations
from bert_probe.analyses.probing.relations import DIRECTIONS, RelationExample, find_examples
from bert_probe.core import files
from bert_probe.errors import EmptyTextError, SelectionError, TextError, TooLongError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.text.tagged_sentences import TaggedSentence
from tests.helpers.command_line import bert_probe
from tests.helpers.raw import Raw
from tests.helpers.treebank import SAILING, SAILING_FILE, SLEEPING, SLEEPING_FILE, TAGGED, conllu, read

# Sentences whose words the tokenizer of the test family splits into subword tokens.
PIECES = read(
    conllu(
        (
            ("Three", "NUM", 2, "nummod"),
            ("engineers", "NOUN", 3, "nsubj"),
            ("repaired", "VERB", 0, "root"),
            ("bridges", "NOUN", 3, "obj"),
            (",", "PUNCT", 3, "punct"),
            ("unknown", "ADJ", 4, "amod"),
        ),
        (("It", "PRON", 2, "nsubj"), ("holds", "VERB", 0, "root"), ("grounds", "NOUN", 2, "obj")),
    )
)


def guess(weights: np.ndarray, tokens: tuple[Token, ...], owner: TaggedSentence, asking: int) -> int:
    """Return the index of the word that receives the largest attention weight from the word `asking`, or -1.

    Attention is summed over the tokens of the key word, and averaged over the tokens of the query word.

    Args:
        weights: attention weights, shape [query, key].
        tokens: tokens of the text.
        owner: sentence with the character spans of the words.
        asking: index of the query word.
    """
    pieces = [
        [i for i, token in enumerate(tokens) if not token.special and start <= token.start < end]
        for start, end in owner.spans
    ]
    sums = [
        np.mean([sum(weights[query, key] for key in keys) for query in pieces[asking]]) for keys in pieces
    ]
    best = max((word for word in range(len(owner.words)) if word != asking), key=lambda word: sums[word])
    return best if sums[best] > 0 else -1


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert", "deberta-v2"])
def test_accuracies_equal_raw_attention(
    name: str, family_folder: Callable[[str], Path], double_family: Callable[[str], Checkpoint]
) -> None:
    checkpoint, raw = double_family(name), Raw(family_folder(name), "float64")
    result = Relations().of(checkpoint, PIECES, PIECES)
    for index, relation in enumerate(result.relations):
        right = np.zeros(result.accuracies.shape[1:])
        count = 0
        for item in PIECES:
            encoding = checkpoint.encode(item.text)
            attentions = raw.run(encoding).attentions
            for word, head in enumerate(item.heads):
                if item.relations[word] != relation:
                    continue
                count += 1
                for layer, weights in enumerate(attentions):
                    for number, of_head in enumerate(weights[0].numpy()):
                        right[0, layer, number] += guess(of_head, encoding.tokens, item, word) == head
                        right[1, layer, number] += guess(of_head, encoding.tokens, item, head) == word
        assert result.counts[index] == count
        np.testing.assert_array_equal(result.accuracies[index], right / count)


def test_heads_are_selected_and_reported_on_different_files(minilm: Checkpoint) -> None:
    result = Relations().of(minilm, SAILING, SLEEPING)
    assert result.relations == ("det", "nsubj", "obj", "punct")
    assert result.counts.tolist() == [2, 2, 1, 1]
    assert result.left_out == ("advmod",)
    swapped = Relations().of(minilm, SLEEPING, SAILING)
    for name, best in zip(result.relations, result.best, strict=True):
        here, present = result.relations.index(name), swapped.relations.index(name)
        np.testing.assert_array_equal(result.chosen[here], swapped.accuracies[present])
        place = DIRECTIONS.index(best.direction), best.layer, best.head
        assert result.chosen[here][place] == result.chosen[here].max()
        assert best.accuracy == result.accuracies[here][place]


def test_offset_baseline_equals_hand_computation(minilm: Checkpoint) -> None:
    result = Relations().of(minilm, SAILING, SLEEPING)
    offsets = {item.relation: (item.offset, item.offset_accuracy) for item in result.best}
    # The determiner is one word before its noun, the subject is one word before its verb, and the object is
    # two words after its verb.
    assert offsets == {"det": (1, 1.0), "nsubj": (1, 1.0), "obj": (-2, 1.0), "punct": (-3, 1.0)}


def test_subtypes_are_separate_unless_universal(minilm: Checkpoint) -> None:
    apart = Relations().of(minilm, SAILING, SAILING)
    together = Relations(universal=True).of(minilm, SAILING, SAILING)
    assert dict(zip(apart.relations, apart.counts, strict=True))["nsubj:outer"] == 1
    assert dict(zip(together.relations, together.counts, strict=True))["nsubj"] == 3


def test_table_of_all_heads_contains_the_best(minilm: Checkpoint) -> None:
    result = Relations().of(minilm, SAILING, SLEEPING)
    every = result.showing(show="all").table().set_index(["relation", "direction", "layer", "head"])
    assert len(every) == 4 * 2 * 72
    for row in result.table().itertuples():
        owner = every.loc[(row.relation, row.direction, row.layer, row.head)]
        assert owner["accuracy"] == row.accuracy
        assert owner["chosen_accuracy"] == every.loc[row.relation]["chosen_accuracy"].max()


def test_merged_words_and_single_words_have_no_guess(minilm: Checkpoint) -> None:
    two = (("can", "AUX", 2, "aux"), ("\u200b", "X", 0, "root"))
    alone = (("Can", "AUX", 2, "aux"), ("go", "VERB", 0, "root"), ("\u200b", "X", 2, "dep"))
    bank = read(conllu(alone, two))
    result = Relations().of(minilm, bank, bank)
    assert (result.relations, result.counts.tolist()) == (("aux",), [1])
    assert (result.accuracies == 1).all(), "there is only one other word"


def test_examples_have_the_relation() -> None:
    assert list(find_examples(SAILING, "obj")) == [RelationExample(0, 4, 2), RelationExample(1, 4, 2)]
    assert list(find_examples(SAILING, "nsubj", universal=True))[-1] == RelationExample(2, 0, 1)
    with pytest.raises(SelectionError, match="The relation goeswith does not occur in these"):
        list(find_examples(SAILING, "goeswith"))


@pytest.mark.parametrize(
    ("data", "reported", "error", "message"),
    [
        (SAILING, TAGGED, TextError, "reported has no relations between words. Use a treebank"),
        (SAILING, (), EmptyTextError, "There is no sentence in reported"),
        (
            "text",
            SAILING,
            TextError,
            "chosen must be tagged sentences from read_tagged_sentences",
        ),
        (SAILING[2:], SLEEPING[1:], TextError, "The files have no relation in common"),
        (
            (replace(SAILING[0], text="go " * 600),),
            SAILING,
            TooLongError,
            "chosen, line 2: The text has 602 tokens",
        ),
    ],
)
def test_invalid_relations_raise_error(
    minilm: Checkpoint,
    data: tuple[TaggedSentence, ...],
    reported: object,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error) as refused:
        Relations().of(minilm, data, reported)
    assert message in str(refused.value)


def test_command_equals_library(minilm: Checkpoint, tmp_path: Path) -> None:
    paths = [tmp_path / "dev.conllu", tmp_path / "test.conllu"]
    for path, content in zip(paths, (SAILING_FILE, SLEEPING_FILE), strict=True):
        path.write_text(content, encoding="utf-8")
    ended = bert_probe("relations", *map(str, paths), built_in=minilm)
    assert ended.text == files.to_csv(Relations().of(minilm, SAILING, SLEEPING).table())
    header = "relation,count,layer,head,direction,accuracy,offset,offset_accuracy"
    assert ended.text.splitlines()[0] == header
    broken = SAILING_FILE.replace("\t3\tnsubj", "\t9\tnsubj")
    paths[0].write_text(broken, encoding="utf-8")
    refusal = bert_probe("relations", *map(str, paths), built_in=minilm).refusal
    assert refusal == (
        "dev.conllu has 2 errors: line 3: the head is 9, but the sentence has 6 words; line 11: the "
        "head is 9, but the sentence has 6 words. Correct the file, and open the file again."
    )
