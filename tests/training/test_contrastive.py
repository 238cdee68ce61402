"""Test similarity training: parity of losses with sentence-transformers, and of vectors after saving."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import bert_probe
from bert_probe import Train
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.similarity_examples import (
    SimilarityExample,
    SimilarityExamples,
    parse_similarity_examples,
)
from bert_probe.training import contrastive
from bert_probe.training.contrastive import DistinctBatches, recall_at_1
from tests.helpers import families, sentence_models
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import STILL, texts

KINDS = {"scored pairs": 2, "pairs": 2, "triplets": 3}


def examples(kind: str, count: int = 16) -> SimilarityExamples:
    """Return similarity examples of the given type. The score of a pair is its share of common words."""
    columns = [[row.text for row in texts(count, seed=seed).rows] for seed in range(KINDS[kind])]
    rows = []
    for number, example in enumerate(zip(*columns, strict=True)):
        first, second = (set(text.split()) for text in example[:2])
        score = len(first & second) / len(first | second) if kind == "scored pairs" else None
        rows.append(SimilarityExample(example, score, number + 2))
    return SimilarityExamples.of(kind, rows)


@pytest.fixture
def sentence_checkpoint(tmp_path: Path) -> Callable[[str], Checkpoint]:
    """Return a tiny model of sentence-transformers without dropout, in float64."""

    def build(layout: str) -> Checkpoint:
        families.build("bert", tmp_path / "encoder", **STILL)
        folder = sentence_models.save(layout, tmp_path / "encoder", tmp_path / "original")
        return bert_probe.load(folder, dtype="float64")

    return build


@pytest.mark.parametrize("texts_per_example", [2, 3])
def test_losses_equal_sentence_transformers(texts_per_example: int) -> None:
    from sentence_transformers.sentence_transformer import losses

    draw = torch.Generator().manual_seed(4)
    vectors = torch.randn(9, texts_per_example, 6, dtype=torch.float64, generator=draw)
    columns = list(vectors.unbind(dim=1))
    scores = torch.tensor([0, 0.25, 0.25, 0.375, 0.5, 0.5, 0.5, 0.75, 1], dtype=torch.float64)
    pairs = [
        (
            contrastive.in_batch_negatives_loss(vectors),
            losses.MultipleNegativesRankingLoss(None).compute_loss_from_embeddings(columns, None),
        )
    ]
    if texts_per_example == 3:
        reference = losses.TripletLoss(None).compute_loss_from_embeddings(columns, None)
        pairs.append((contrastive.triplet_loss(vectors), reference))
    else:
        cosent = losses.CoSENTLoss(None).compute_loss_from_embeddings(columns, scores)
        pairs.append((contrastive.cosent_loss(vectors, scores), cosent))
        cosine = losses.CosineSimilarityLoss(None).compute_loss_from_embeddings(columns, scores)
        pairs.append((contrastive.cosine_loss(vectors, scores), cosine))
    for loss, expected in pairs:
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)


def test_losses_by_hand() -> None:
    """The two pairs are orthogonal: each anchor has cosine 1 with its positive, 0 with the other positive."""
    vectors = torch.tensor([[[1.0, 0], [2.0, 0]], [[0, 1.0], [0, 3.0]]], dtype=torch.float64)
    expected = np.log(1 + np.exp(-20.0))
    assert float(contrastive.in_batch_negatives_loss(vectors)) == pytest.approx(expected)
    assert float(contrastive.cosine_loss(vectors, torch.tensor([1.0, 0.5]))) == pytest.approx(0.125)
    assert float(contrastive.cosent_loss(vectors, torch.tensor([1.0, 0.5]))) == pytest.approx(np.log(2))
    triplet = torch.tensor([[[0.0, 0], [3.0, 4.0], [0, 1.0]]], dtype=torch.float64)
    assert float(contrastive.triplet_loss(triplet)) == pytest.approx(5 - 1 + 5, abs=1e-5)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("kind", "loss", "update", "layout"),
    prove_unless(
        {
            ("scored pairs", "auto", "all", "layer norm"),
            ("pairs", "auto", "top:1", "mean"),
            ("triplets", "triplet", "lora", "mean"),
        },
        [
            ("scored pairs", "auto", "all", "layer norm"),
            ("scored pairs", "cosine", "top:2", "dense"),
            ("pairs", "auto", "top:1", "mean"),
            ("triplets", "triplet", "lora", "mean"),
            ("triplets", "in-batch-negatives", "all", "prompts"),
        ],
    ),
)
def test_saved_model_gives_the_measured_vectors(
    kind: str,
    loss: str,
    update: str,
    layout: str,
    sentence_checkpoint: Callable[[str], Checkpoint],
    tmp_path: Path,
) -> None:
    original, data = sentence_checkpoint(layout), examples(kind, 20)
    before = {name: values.clone() for name, values in original.model.state_dict().items()}
    trained = Train(update, epochs=3, batch=4, rate=1e-2, loss=loss).of(original, data)
    assert all(torch.equal(values, before[name]) for name, values in original.model.state_dict().items())
    assert trained.history[0].step == 0
    folder = trained.save_model(tmp_path / "trained")
    reference = sentence_models.reference(folder, "float64")
    opened = bert_probe.load(folder, dtype="float64")
    assert opened.description.sentence_model_sha256 == trained.checkpoint.description.sentence_model_sha256
    columns = [
        reference.encode([row.texts[column] for row in trained.held_out.rows], normalize_embeddings=True)
        for column in range(KINDS[kind])
    ]
    if kind == "scored pairs":
        cosines = (columns[0] * columns[1]).sum(axis=1)
        measure = spearmanr(cosines, [row.score for row in trained.held_out.rows]).statistic
    elif kind == "pairs":
        measure = float(((columns[0] @ columns[1].T).argmax(axis=1) == np.arange(len(columns[0]))).mean())
    else:
        measure = float((((columns[1] - columns[2]) * columns[0]).sum(axis=1) > 0).mean())
    assert trained.best.measure == pytest.approx(measure, abs=1e-9)


def test_training_lowers_the_loss(sentence_checkpoint: Callable[[str], Checkpoint]) -> None:
    data = examples("scored pairs", 24)
    trained = Train("all", epochs=8, batch=8, rate=3e-3).of(sentence_checkpoint("mean"), data, data)
    assert trained.best.held_out_loss < trained.history[0].held_out_loss
    assert trained.best.measure > trained.history[0].measure


def test_original_weights_are_kept_if_nothing_is_better(
    sentence_checkpoint: Callable[[str], Checkpoint],
) -> None:
    """The held-out scores are the cosines of the original model, so no other model can be better."""
    original, data = sentence_checkpoint("mean"), examples("scored pairs", 24)
    model = sentence_models.reference(original.folder, "float64")
    rows = []
    for row in data.rows:
        a, b = model.encode(list(row.texts), normalize_embeddings=True)
        rows.append(SimilarityExample(row.texts, float(a @ b), row.line))
    held_out = SimilarityExamples.of(data.kind, rows)
    trained = Train("all", epochs=2, rate=1e-2).of(original, data, held_out)
    assert trained.best.step == 0
    assert "the model keeps the original weights" in " ".join(trained.notes)
    assert trained.best.measure == pytest.approx(1)


def test_correlation_with_equal_scores_is_nan_without_a_warning(
    sentence_checkpoint: Callable[[str], Checkpoint],
) -> None:
    checkpoint, data = sentence_checkpoint("mean"), examples("scored pairs", 12)
    objective = contrastive.SimilarityObjective(checkpoint, data, "cosine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(objective.score(np.array([0.1, 0.2]), np.array([0.5, 0.5])))
        assert math.isnan(objective.score(np.array([0.1, 0.1]), np.array([0.5, 0.6])))
    held_out = [SimilarityExample(row.texts, 0.5, row.line) for row in data.rows]
    trained = Train("all", epochs=1).of(checkpoint, data, SimilarityExamples.of(data.kind, held_out))
    assert all(math.isnan(point.measure) for point in trained.history)


def test_split_of_connected_pairs_is_noted(sentence_checkpoint: Callable[[str], Checkpoint]) -> None:
    words = [f"word {number}" for number in range(8)]
    pairs = [(first, second) for first in words for second in words if first != second]
    data = SimilarityExamples.of(
        "pairs", [SimilarityExample(pair, None, n) for n, pair in enumerate(pairs, 1)]
    )
    plan = Train().plan(sentence_checkpoint("mean"), data)
    train, held_out = plan.material.data.rows, plan.material.held_out_rows.rows
    assert (len(train), len(held_out)) == (46, 10)
    assert not {frozenset(row.texts) for row in train} & {frozenset(row.texts) for row in held_out}
    shared = sum(row.texts[0] in {row.texts[0] for row in train} for row in held_out)
    assert any(
        note.startswith(f"{shared} of 10 held-out examples have the first text") for note in plan.notes
    )
    large = SimilarityExamples.of(
        "pairs",
        [SimilarityExample((f"a {n // 9}", f"b {n}"), None, n) for n in range(36)]
        + [SimilarityExample((f"c {n}", f"d {n}"), None, n) for n in range(4)],
    )
    plan = Train(held_out=0.1).plan(sentence_checkpoint("mean"), large)
    held_out = plan.material.held_out_rows.rows
    assert {row.texts[0][0] for row in held_out} == {"c"}
    assert len(held_out) in (3, 4)
    plan = Train(held_out=0.3).plan(sentence_checkpoint("mean"), large)
    count = len(plan.material.held_out_rows.rows)
    assert 9 <= count <= 15
    plan = Train(held_out=0.15).plan(
        sentence_checkpoint("mean"), SimilarityExamples.of("pairs", large.rows[:36])
    )
    assert plan.notes[0].startswith(
        "9 of 36 texts (25.0%) are held out instead of 15.0%, because examples with"
    )


def test_batches_have_no_equal_texts() -> None:
    rows = [(f"a{number % 5}", f"b{number}") for number in range(20)]
    batches = [*DistinctBatches(rows, 5, seed=1)]
    assert sorted(index for batch in batches for index in batch) == list(range(20))
    assert len(batches) == len(DistinctBatches(rows, 5, seed=1)) == 4
    for batch in batches[:3]:
        assert len({rows[index][0] for index in batch}) == 5
    equal = [*DistinctBatches([("a", "b")] * 5, 2, seed=0)]  # Duplicates in a batch cannot be avoided here.
    assert [len(batch) for batch in equal] == [2, 2, 1]


def test_recall_counts_ties_of_different_texts_as_errors() -> None:
    anchors = np.array([[1.0, 0], [0, 1], [1, 0]])
    positives = np.array([[1.0, 0], [0, 1], [1, 0]])
    assert recall_at_1(anchors, positives, np.array([0, 1, 2])) == pytest.approx(1 / 3)
    assert recall_at_1(anchors, positives, np.array([0, 1, 0])) == 1
    assert recall_at_1(anchors[:2], np.array([[0.8, 0.6], [0, 1]]), np.array([0, 1])) == 1


def test_recall_of_repeated_positives(
    sentence_checkpoint: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    """Equal positives are one candidate; rounding does not decide which of them is the most similar."""
    checkpoint = sentence_checkpoint("mean")
    answers = ("A boat is on the river.", "It is late.")
    rows = [
        SimilarityExample((row.text, answers[number % 2]), None, number)
        for number, row in enumerate(texts(60).rows)
    ]
    data = SimilarityExamples.of("pairs", rows)
    trained = Train("all", epochs=1).of(checkpoint, data, data)
    reference = sentence_models.reference(trained.save_model(tmp_path / "trained"), "float64")
    anchors = reference.encode([row.texts[0] for row in rows], normalize_embeddings=True)
    scores = anchors @ reference.encode(answers, normalize_embeddings=True).T
    expected = np.mean([row[number % 2] > row[1 - number % 2] for number, row in enumerate(scores)])
    assert trained.best.measure == expected > 0


def test_wrong_data(sentence_checkpoint: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    checkpoint = sentence_checkpoint("mean")
    with pytest.raises(SelectionError, match="cannot be used with pairs"):
        Train(loss="cosine").plan(checkpoint, examples("pairs"))
    high = [SimilarityExample(row.texts, 5.0, row.line) for row in examples("scored pairs").rows]
    with pytest.raises(TextError, match="between −1 and 1"):
        Train(loss="cosine").plan(checkpoint, SimilarityExamples.of("scored pairs", high))
    with pytest.raises(TextError, match="All scores are 5, but the loss cosent learns from the order"):
        Train().plan(checkpoint, SimilarityExamples.of("scored pairs", high))
    with pytest.raises(TextError, match="same columns"):
        Train().plan(checkpoint, examples("pairs"), examples("triplets"))
    with pytest.raises(SelectionError, match="similarity examples only"):
        Train(loss="cosent").plan(checkpoint, texts(12))
    plain = bert_probe.load(tmp_path / "encoder")
    with pytest.raises(UnavailableError, match="does not declare its pooling"):
        Train().plan(plain, examples("pairs"))


@pytest.mark.parametrize("family", ["bart", "switch_transformers", "t5gemma"])
def test_encoder_that_could_not_be_opened_is_not_trained(family: str, tmp_path: Path) -> None:
    families.build(family, tmp_path / "encoder")
    folder = sentence_models.save("mean", tmp_path / "encoder", tmp_path / "original")
    message = r"cannot be trained, because the model has an encoder \(\w+\) that sentence-transformers cannot"
    with pytest.raises(UnavailableError, match=message):
        Train().plan(bert_probe.load(folder), examples("pairs"))


@pytest.mark.parametrize(
    ("name", "content", "kind", "first"),
    [
        ("a.csv", "text_a,text_b,score\na,b,4.5\n", "scored pairs", (("a", "b"), 4.5)),
        ("a.tsv", 'score\ttext_a\ttext_b\n1\tA "b" c\t"d\n', "scored pairs", (('A "b" c', '"d'), 1.0)),
        (
            "a.jsonl",
            '{"anchor": "a", "positive": "b", "negative": "c"}\n',
            "triplets",
            (("a", "b", "c"), None),
        ),
        ("a.csv", "Anchor;Positive\na;b\n", "pairs", (("a", "b"), None)),
    ],
)
def test_files(name: str, content: str, kind: str, first: tuple[tuple[str, ...], float | None]) -> None:
    data = parse_similarity_examples(content.encode(), name)
    assert data.kind == kind
    assert (data.rows[0].texts, data.rows[0].score) == first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,b\n", "has the columns text, label"),
        ("text_a,text_b,score\na,b,high\n,b,1\n", "2 errors|score high"),
        ("anchor,positive\n", "no rows"),
        ("anchor,positive,anchor\na,b,c\n", "several columns named anchor"),
    ],
)
def test_invalid_files(content: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_similarity_examples(content.encode(), "a.csv")
