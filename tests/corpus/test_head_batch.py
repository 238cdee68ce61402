"""Heads of a padded batch measured at once: what is measured text by text, and the definitions as loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import bert_probe
from bert_probe.analyses.head_measures import MEASURES, measure_heads
from bert_probe.corpus.batch_attention import Layer
from bert_probe.corpus.head_batch import HeadBatch, read_heads
from bert_probe.corpus.units import Units
from bert_probe.model.capture import recording
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batch
from bert_probe.text.words import word_lens
from tests.helpers.exactness import assert_exact
from tests.helpers.families import LONG, SENTENCES, TEXT

Checkpoints = Callable[[str], bert_probe.Checkpoint]


def layers_of(checkpoint: bert_probe.Checkpoint, encodings: Sequence[Encoding]) -> Sequence[Layer]:
    """What the attention of every layer was given in one pass over a padded batch."""
    shown = checkpoint.description.shows_qkv
    with torch.inference_mode(), checkpoint.running() as model, recording() as calls:
        output = model(**batch(checkpoint, encodings), output_attentions=not shown)
    return calls if shown else output.attentions


def read(
    checkpoint: bert_probe.Checkpoint, encodings: Sequence[Encoding], words: bool, strongest: bool = False
) -> HeadBatch:
    lenses = [word_lens(encoding) for encoding in encodings]
    units = Units.of_words(lenses) if words else Units.of_tokens(encodings)
    return read_heads(layers_of(checkpoint, encodings), units, strongest)


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize(
    "name",
    ["bert", "roberta", "modernbert", "distilbert", "albert", "electra", "mpnet", "deberta-v2", "eurobert"],
)
def test_a_batch_is_measured_as_its_texts_are(name: str, words: bool, double_family: Checkpoints) -> None:
    checkpoint = double_family(name)
    encodings = [
        checkpoint.encode(text, pair)
        for text, pair in ((TEXT, None), ("we", None), (LONG[:180], None), (TEXT, SENTENCES[4]), ("!", "we"))
    ]
    found = read(checkpoint, encodings, words).measures
    for row, encoding in enumerate(encodings):
        trace = checkpoint.trace_encodings([encoding])[0]
        expected = measure_heads(trace, word_lens(trace) if words else None)
        for number, measure in enumerate(MEASURES):
            assert_exact(found[number, row], expected[measure], measure)
