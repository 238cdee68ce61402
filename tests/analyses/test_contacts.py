"""Test contacts: parity with `predict_contacts`, hand-computed APC, and inputs without a prediction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import bert_probe
from bert_probe.analyses.attention.contacts import NOT_A_PREDICTION, Contacts
from bert_probe.errors import EmptyTextError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from tests.helpers.proteins import SEQUENCE, save_esm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny ESM-2 with a contact head with `EsmForMaskedLM`, and return its folder."""
    return save_esm(tmp_path_factory.mktemp("esm"), transformers.EsmForMaskedLM)


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    """Return the tiny ESM-2 in float64."""
    return open_double(folder)


def open_double(folder: Path) -> Checkpoint:
    checkpoint = bert_probe.load(folder, dtype="float64")
    keep_float64(checkpoint.model)
    return checkpoint


def predict(folder: Path, text: str) -> np.ndarray:
    """Return the output of the raw model's `predict_contacts` in float64."""
    tokenizer = transformers.EsmTokenizer.from_pretrained(folder)
    model = transformers.EsmForMaskedLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    ).eval()
    keep_float64(model.esm)
    with torch.inference_mode():
        inputs = tokenizer(text, return_tensors="pt")
        contacts: np.ndarray = model.predict_contacts(inputs["input_ids"], inputs["attention_mask"])[
            0
        ].numpy()
    return contacts


@pytest.mark.parametrize("text", [SEQUENCE, "MKT<mask>YI AKQRQ j", "MKTAY<eos>IAKQRQISF"])
def test_prediction_equals_predict_contacts(folder: Path, checkpoint: Checkpoint, text: str) -> None:
    result = Contacts().of(checkpoint.trace(text))
    expected = predict(folder, text)
    assert result.question.method == "prediction"
    assert np.ptp(expected) > 0.1, "the case must distinguish heads"
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=1e-10)
    # Compare the prediction for the text in a padded batch.
    padded, *_ = checkpoint.traces([text, SEQUENCE * 2])
    np.testing.assert_allclose(Contacts().of(padded).values, expected, rtol=0, atol=1e-10)


def test_prediction_without_an_end_token_leaves_out_the_last_residue(tmp_path: Path) -> None:
    folder = save_esm(tmp_path, transformers.EsmForMaskedLM, ends=False)
    result = Contacts().of(open_double(folder).trace(SEQUENCE))
    expected = predict(folder, SEQUENCE)
    assert [str(residue) for residue in result.residues] == [*SEQUENCE[:-1]]
    np.testing.assert_allclose(result.values, expected, rtol=0, atol=1e-10)


def test_table_lists_the_best_pairs_that_are_far_apart(checkpoint: Checkpoint) -> None:
    result = Contacts(separation=10, top="L/5").of(checkpoint.trace(SEQUENCE))
    table = result.table()
    pairs = [
        (result.values[i, j], i + 1, j + 1)
        for i in range(len(SEQUENCE))
        for j in range(i + 10, len(SEQUENCE))
    ]
    best = sorted(pairs, reverse=True)[: len(SEQUENCE) // 5]
    assert table[["probability", "residue_i", "residue_j"]].to_numpy().tolist() == [[*row] for row in best]
    assert table["separation"].tolist() == [j - i for _, i, j in best]
    assert table["token_i"].tolist() == [SEQUENCE[i - 1] for _, i, _ in best]
    every = result.showing(separation=1, top="all").table()
    assert len(every) == len(SEQUENCE) * (len(SEQUENCE) - 1) // 2
    assert result.showing(separation=22).table().empty


def test_average_product_correction_by_hand() -> None:
    # For the last two tokens, S = A + Aᵀ is [[1, 0.4], [0.4, 0.2]].
    # The rows of S sum to 1.4 and 0.6, and all values of S sum to 2.
    head = [[0.2, 0.4, 0.4], [0.2, 0.5, 0.3], [0.8, 0.1, 0.1]]
    trace = bert_probe.from_attention(np.array([[head, np.eye(3)]]), ["[CLS]", "M", "K"])
    values = Contacts(layer=0, head=0).of(trace).values
    expected = np.array([[0.02, -0.02], [-0.02, 0.02]])
    np.testing.assert_allclose(values, expected, atol=1e-7)
    # For the identity matrix, S is 2 on the diagonal, so the average product is 1 everywhere.
    mean = (expected + np.array([[1, -1], [-1, 1]])) / 2
    result = Contacts().of(trace)
    np.testing.assert_allclose(result.values, mean, atol=1e-7)
    assert NOT_A_PREDICTION in result.metadata["note"]
    assert "corrected_attention" in result.table()


def test_attention_of_a_layer_is_the_mean_over_its_heads(checkpoint: Checkpoint) -> None:
    trace = checkpoint.trace(SEQUENCE)
    heads = [Contacts("attention", 1, head).of(trace).values for head in range(trace.heads)]
    layer = Contacts("attention", 1).of(trace).values
    np.testing.assert_allclose(layer, np.mean(heads, axis=0), atol=1e-12)
    np.testing.assert_allclose(layer.sum(axis=0), 0, atol=1e-12)
    layers = [Contacts("attention", number).of(trace).values for number in range(trace.layers)]
    np.testing.assert_allclose(Contacts("attention").of(trace).values, np.mean(layers, axis=0), atol=1e-12)


def test_contact_head_is_optional_and_must_be_trained(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "model.safetensors")
    bias = "esm.contact_head.regression.bias"
    save_file({**weights, bias: torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    untrained = Contacts().of(bert_probe.load(tmp_path).trace(SEQUENCE))
    assert untrained.question.method == "attention"
    assert "never trained" in untrained.note
    remaining = {name: tensor for name, tensor in weights.items() if "contact_head" not in name}
    save_file(remaining, tmp_path / "model.safetensors", {"format": "pt"})
    without = bert_probe.load(tmp_path)
    assert any("no contact head" in note for note in without.description.notes)
    assert Contacts().of(without.trace(SEQUENCE)).question.method == "attention"
    with pytest.raises(UnavailableError, match="has no contact head"):
        Contacts("prediction").of(without.trace(SEQUENCE))


def test_input_that_has_no_contacts_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(SelectionError, match="input is a pair"):
        Contacts().of(checkpoint.trace(SEQUENCE, SEQUENCE))
    with pytest.raises(EmptyTextError, match="at least 2 residues"):
        Contacts().of(checkpoint.trace("M"))
    trace = checkpoint.trace(SEQUENCE)
    with pytest.raises(SelectionError, match="Omit layer and head"):
        Contacts("prediction", layer=0).of(trace)
    with pytest.raises(SelectionError, match="only within a layer"):
        Contacts("attention", head=0).of(trace)
    assert Contacts(layer=0).of(trace).question.method == "attention"
