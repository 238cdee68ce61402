"""Test the pages Vocabulary and Positions, and the batch on the Tokens page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe import Fertility, Neighbors, Positions, Vocabulary
from bert_probe.runtime import shared_cache
from bert_probe.text import pieces
from tests.helpers.pages import HOSTILE, error_text, open_page, page_text, question_in_url, url_params

FamilyFolder = Callable[[str], Path]


def test_search_lists_matches_and_is_in_url() -> None:
    app = open_page(
        "vocabulary", search="^##.*ing$", match="regex", case="1", piece_kind="continuation", near="river"
    )
    assert not app.exception
    checkpoint = shared_cache.open_checkpoint("", "")
    question = question_in_url(app, Vocabulary)
    assert question == Vocabulary("^##.*ing$", "regex", case=True, kind="continuation")
    table, near = (element.value for element in app.dataframe[:2])
    assert table["token"].tolist() == question.of(checkpoint).table()["token"].tolist()
    assert near["cosine"].tolist() == Neighbors("river").of(checkpoint).cosines.tolist()
    assert "two random tokens have a mean cosine of" in page_text(app)
    assert "bert_probe.Neighbors(token='river')" in "\n".join(element.value for element in app.get("code"))


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ({"search": "(", "match": "regex"}, "Invalid regular expression: missing )"),
        ({"search": ".{99999999}", "match": "regex"}, "invalid repetition size"),
        ({"search": r"(a|aa)+\d$", "match": "regex"}, "takes more than"),
        ({"near": "unhappiest"}, "The tokenizer splits it into un, ##ha, ##pp, ##iest"),
        ({"near": HOSTILE}, "is not a token of this vocabulary"),
    ],
)
def test_invalid_search_is_reported_and_page_is_shown(
    address: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SECONDS", 0.0)
    app = open_page("vocabulary", **address)
    assert not app.exception
    assert sentence in page_text(app)
    assert len(app.dataframe) == 1, "the other half of the page is still shown"
    assert [app.text_input(key=name).value for name in address if name != "match"] == [
        value for name, value in address.items() if name != "match"
    ]


def test_text_too_long_for_url_is_kept() -> None:
    app = open_page("vocabulary", piece_kind="continuation")
    text = "漢" * 8_000
    app.text_input(key="search").set_value(text).run()
    assert not app.exception
    assert "search" not in app.query_params
    assert url_params(app)["piece_kind"] == "continuation"
    app.text_input(key="near").set_value("river").run()
    assert url_params(app)["near"] == "river"
    assert app.text_input(key="search").value == text


def test_repeated_url_parameter_is_reported() -> None:
    app = open_page("vocabulary", search=["river", "*boat*"])
    assert not app.exception
    assert any(
        "contains search more than once. The last value is used: \\*boat\\*" in element.value
        for element in app.caption
    )
    assert app.text_input(key="search").value == "*boat*"
    assert app.query_params["search"] == "*boat*"


def test_token_types_and_scripts_are_counted() -> None:
    app = open_page("vocabulary", vocabulary_part="kinds")
    assert not app.exception
    assert "continuation" in app.dataframe[0].value["kind"].tolist()
    assert [button.label for button in app.get("download_button")].count("CSV") == 2


def test_text_is_tokenized_by_second_vocabulary(family_folder: FamilyFolder) -> None:
    text = "A small boat crosses"
    app = open_page("vocabulary", a=text, vocabulary_part="text")
    assert not app.exception
    result = Fertility().of(shared_cache.open_checkpoint("", "").trace(text))
    assert app.metric[-4].value == f"{result.fertility:.2f}"
    app = open_page("vocabulary", a=text, vocabulary_part="text", other=str(family_folder("roberta")))
    assert not app.exception
    assert app.dataframe[-1].value["word"].tolist() == text.split()
    assert "diff fertility " in app.get("code")[-2].value


@pytest.mark.parametrize("show", ["cosines", "distance", "spectrum", "table"])
def test_positions_are_shown_next_to_sinusoids(show: str) -> None:
    app = open_page("positions", positions_show=show)
    assert not app.exception
    assert "this model does not use sinusoids" in page_text(app)
    question = question_in_url(app, Positions)
    assert question.show in (show, None)
    assert f"show='{show}'" in app.get("code")[0].value or show == "cosines"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("modernbert", "**rotary** position embeddings (Su et al. 2021)"),
        ("mpnet", "a **bias** that depends on the distance between query and key is added to each score"),
        ("deberta-v2", "learned embeddings of **distances**"),
    ],
)
def test_families_without_learned_positions_show_alternative(
    name: str, words: str, family_folder: FamilyFolder
) -> None:
    for show in (None, "bias" if name == "mpnet" else "distance" if name == "modernbert" else "relative"):
        app = open_page(
            "positions", model=str(family_folder(name)), **({} if show is None else {"positions_show": show})
        )
        assert not app.exception
        assert words in page_text(app)


def test_batch_is_shown_with_padding_and_check() -> None:
    app = open_page("tokens", padding="1", a="we left the ground", b="", batch_texts="One word\n" + HOSTILE)
    assert not app.exception
    grid = app.dataframe[-1].value
    assert len(grid) == 3
    assert grid.iloc[1].tolist()[:5] == ["[CLS]", "one", "word", "[SEP]", "[PAD]"]
    assert "padding does not change the vectors (the largest difference is" in page_text(app)
    app = open_page(
        "tokens", padding="1", a="we left", b="", batch_texts="One word", padding_cells="input_ids"
    )
    assert app.dataframe[-1].value.iloc[0].tolist() == ["101", "2057", "2187", "102"]


def test_missing_texts_of_a_batch_are_reported() -> None:
    app = open_page("tokens", a="a boat", padding="1", batch_kept="0" * 32)
    assert "no longer stored" in error_text(app)
    assert app.text_area(key="batch_texts").value == ""


def test_batch_of_one_text_has_no_padding() -> None:
    app = open_page("tokens", padding="1", a="we left", b="")
    app.text_area(key="batch_texts").set_value("").run()
    assert not app.exception
    assert "A single text needs no padding" in page_text(app)
