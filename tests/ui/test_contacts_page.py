"""Test the view "Contacts" of the Attention page, FASTA in a text field, and texts of unknown tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

import bert_probe
from tests.helpers.pages import open_page
from tests.helpers.proteins import SEQUENCE, save_esm, save_protbert


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny ESM-2 with a contact head."""
    return str(save_esm(tmp_path_factory.mktemp("esm"), transformers.EsmForMaskedLM))


def test_contacts_of_a_fasta_record_are_the_librarys(folder: str) -> None:
    app = open_page(a=f">P1 a protein\n{SEQUENCE[:9]}\n{SEQUENCE[9:]}", model=folder, show="contacts")
    assert not app.exception
    assert "sequence of **P1** (22 characters) without its header" in app.info[0].value
    trace = bert_probe.load(folder).trace(SEQUENCE)
    expected = bert_probe.Contacts().of(trace).frame()
    table = app.dataframe[0].value
    assert table["i"].tolist() == [f"{SEQUENCE[i - 1]}{i}" for i in expected["residue_i"]]
    np.testing.assert_allclose(table["probability"], expected["probability"], atol=1e-6)
    app.session_state["contact_method"] = "attention"
    app.run()
    assert not app.exception
    expected = bert_probe.Contacts("attention").of(trace).frame()
    values = app.dataframe[0].value["corrected_attention"]
    np.testing.assert_allclose(values, expected["corrected_attention"], atol=1e-6)
    assert any("not a contact prediction" in caption.value for caption in app.caption)


def test_several_records_in_one_field_are_refused(folder: str) -> None:
    app = open_page(a=f">a\n{SEQUENCE}\n>b\n{SEQUENCE}", model=folder)
    assert not app.exception
    assert any("2 FASTA records, but this input accepts a single sequence" in text.value for text in app.text)


def test_button_writes_a_sequence_with_spaces(tmp_path: Path) -> None:
    app = open_page("tokens", a=SEQUENCE, model=str(save_protbert(tmp_path)))
    assert "1 of 1 tokens are" in app.warning[0].value
    app.button(key="unknown_a").click().run()
    assert not app.exception
    assert not app.warning
    assert app.text_area(key="draft_a").value == " ".join(SEQUENCE)


def test_the_same_sequence_twice_has_a_button_for_each_field(tmp_path: Path) -> None:
    app = open_page("tokens", a=SEQUENCE, b=SEQUENCE, model=str(save_protbert(tmp_path)))
    assert not app.exception
    assert len(app.warning) == 2
    app.button(key="unknown_b").click().run()
    assert not app.exception
    assert app.text_area(key="draft_a").value == SEQUENCE
    assert app.text_area(key="draft_b").value == " ".join(SEQUENCE)


@pytest.mark.prove
def test_two_models_that_do_not_know_a_sequence_have_a_button_each(tmp_path: Path) -> None:
    models = {name: str(save_protbert(tmp_path)) for name in ("model", "other")}
    app = open_page("changes", a=f"MK{SEQUENCE}", b=SEQUENCE, of="b", **models)
    assert not app.exception
    app.button(key="unknown_to_b_b").click().run()
    assert not app.exception
    assert app.text_area(key="draft_b").value == " ".join(SEQUENCE)
