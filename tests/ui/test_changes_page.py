"""Test the Changes page, which compares two models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from bert_probe import AnswerChange, HeadChange, HeadMatches, LayerSimilarity, ParameterChange, VectorChange
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import shared_cache
from bert_probe.ui.parameters import areas, changed_treemap
from tests.helpers import families
from tests.helpers.changed import changed_checkpoint, changed_folder
from tests.helpers.exactness import assert_repeatable
from tests.helpers.pages import HOSTILE, open_page, page_text, question_in_url, table_of_snippets, url_params

TEXT = "we left the river at night"
TrainedFolder = Callable[[str, str], Path]


@pytest.fixture
def folders(trained_folder: TrainedFolder) -> tuple[str, str]:
    """Return the folders of a tiny BERT for fill-mask, and of a copy with changed weights."""
    before = trained_folder("bert", "fill-mask")
    return str(before), str(changed_folder(before))


def page_of(folders: tuple[str, str], **address: str) -> AppTest:
    return open_page("changes", **{"a": TEXT, "model": folders[0], "other": folders[1], **address})


def models_of(folders: tuple[str, str]) -> list[Checkpoint]:
    """Return the checkpoints that the app has opened, so that results are identical."""
    return [shared_cache.open_checkpoint(folder, "") for folder in folders]


def info_text(app: AppTest) -> str:
    return "\n".join(element.value for element in app.info).replace("\\", "")


def press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return app.run()


def test_missing_second_model_shows_instructions_and_example(folders: tuple[str, str]) -> None:
    app = open_page("changes", a=TEXT, model=folders[0])
    assert not app.exception
    assert app.header[0].value == "A second model is needed"
    assert not app.dataframe
    press(app, "Compare A with itself")
    assert not app.exception
    assert app.text_input(key="other").value == url_params(app)["other"] == folders[0]
    assert "No head changed. No vector changed direction. No parameter changed." in page_text(app).replace(
        "\\", ""
    )
    heads, vectors, answers, tensors = (element.value for element in app.dataframe[:4])
    assert not heads["total_variation"].any()
    assert not vectors.to_numpy().any()
    assert not answers["difference"].any()
    assert not tensors["relative"].any()


def test_example_fine_tunes_a_copy_of_the_model_and_compares_it(folders: tuple[str, str]) -> None:
    app = open_page("changes", a=TEXT, model=folders[0])
    primary = [button.label for button in app.button if button.proto.type == "primary"]
    assert "Fine-tune a copy of A" in primary
    assert "Compare A with itself" not in primary
    press(app, "Fine-tune a copy of A")
    assert not app.exception
    name = app.text_input(key="other").value
    assert shared_cache.is_in_memory(name)
    assert name.startswith(f"Fine-tuned {Path(folders[0]).name} (")
    text = page_text(app).replace("\\", "")
    assert "fine-tuned on 240 sample sentences about six topics" in text
    assert "on 60 held-out sentences:" in text
    a, b = shared_cache.open_checkpoint(folders[0], ""), shared_cache.open_checkpoint(name, "")
    assert HeadChange().of(a.trace(TEXT), b.trace(TEXT)).finding in text
    changed = ParameterChange().of(a, b)
    assert changed.finding in text
    assert changed.table()["relative"].max() > 0
    app.text_input(key="other").set_value("").run()
    assert app.header[0].value == "A second model is needed", "the example does not come back by itself"
    press(app, "Fine-tune a copy of A")
    again = shared_cache.open_checkpoint(app.text_input(key="other").value, "")
    assert again.description.weights_sha256 == b.description.weights_sha256, "a fixed seed"


def test_changes_match_library(folders: tuple[str, str]) -> None:
    app = page_of(folders, mask="4")
    assert not app.exception
    a, b = models_of(folders)
    traces = a.trace(TEXT), b.trace(TEXT)
    heads, vectors, changed = HeadChange().of(*traces), VectorChange().of(*traces), ParameterChange().of(a, b)
    text = page_text(app).replace("\\", "")
    for result in (heads, vectors, changed):
        assert result.finding in text
    tables = [element.value for element in app.dataframe]
    assert_repeatable(tables[0]["total_variation"], heads.table()["total_variation"])
    assert_repeatable(tables[1].to_numpy(), vectors.moved.T)
    answers = AnswerChange("fill-mask", mask=4).of(*traces)
    assert tables[2]["token"].tolist() == answers.table()["token"].tolist()
    assert_repeatable(tables[2]["difference"], answers.difference)
    assert answers.finding in text
    assert sorted(tables[3]["relative"]) == sorted(changed.table()["relative"])
    assert "attention is not an explanation" in text
    assert "Compare a change with the distance between unrelated tokens" in text


@pytest.mark.prove
def test_python_and_shell_snippets_produce_same_table(
    folders: tuple[str, str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    app = page_of(folders, a='-5 degrees, it\'s "cold"', words="1")
    assert question_in_url(app, HeadChange) == HeadChange(words=True)
    frame = table_of_snippets(app, capfdbinary)
    assert frame.attrs["provenance"]["other_model"]["model"] == folders[1]
    assert frame.attrs["provenance"]["question"]["words"] is True


@pytest.mark.prove
def test_swap_button_exchanges_models(folders: tuple[str, str]) -> None:
    app = press(page_of(folders), "Swap A and B")
    assert not app.exception
    assert url_params(app)["model"] == folders[1]
    assert app.text_input(key="other").value == url_params(app)["other"] == folders[0]
    b, a = models_of(folders)
    assert_repeatable(
        app.dataframe[0].value["total_variation"],
        HeadChange().of(a.trace(TEXT), b.trace(TEXT)).table()["total_variation"],
    )


def test_second_click_on_swap_swaps_back_before_the_browser_has_the_new_model(
    folders: tuple[str, str],
) -> None:
    app = press(page_of(folders), "Swap A and B")
    app.text_input(key="other").set_value(folders[1])  # the value before the first click
    press(app, "Swap A and B")
    assert not app.exception
    assert (url_params(app)["model"], url_params(app)["other"]) == folders
    assert app.text_input(key="other").value == folders[1]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("side", ["in A", "in B"])
def test_head_is_shown_for_either_model(folders: tuple[str, str], side: str) -> None:
    app = page_of(folders)
    a, b = models_of(folders)
    layer, head = HeadChange().of(a.trace(TEXT), b.trace(TEXT)).strongest
    press(app, side)
    assert not app.exception
    address = url_params(app)
    assert (address["layer"], address["head"]) == (str(layer + 1), str(head + 1))
    assert address["model"] == folders[side == "in B"]
    assert app.title[0].value == "Attention"


def test_page_that_another_page_wanted_to_open_is_not_opened(folders: tuple[str, str]) -> None:
    app = page_of(folders)
    app.session_state["page_to_open"] = ("train", "attention")
    assert app.run().title[0].value == "Changes"
    assert "page_to_open" not in app.session_state


@pytest.mark.prove
def test_models_of_different_sizes_are_compared_partially(folders: tuple[str, str], tmp_path: Path) -> None:
    families.build("bert", tmp_path, num_hidden_layers=2)
    app = page_of((folders[0], str(tmp_path)))
    assert not app.exception
    infos = info_text(app)
    assert "heads cannot be compared one to one" in infos
    assert "vectors cannot be compared one to one" in infos
    assert "no task in common: A has a task head for fill mask, and B has no trained task head." in page_text(
        app
    )
    assert "Which predictions differ?" not in [element.value for element in app.header]
    assert "tensors have no counterpart with the same name and shape" in page_text(app)
    assert set(app.dataframe[0].value["in"]) == {"both", "only A", "only B"}


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("other", "title", "sentence"),
    [
        (BUILT_IN, "These two models cannot be compared", "tokens in A and 0 in B"),
        ("/no/such/folder", "The second model cannot be opened", "/no/such/folder"),
    ],
)
def test_incompatible_second_model_is_reported(
    folders: tuple[str, str], other: str, title: str, sentence: str
) -> None:
    long = f"{TEXT} " * 40
    app = page_of((folders[0], other), a=long, truncate="1")
    assert not app.exception
    assert app.header[0].value == title
    assert sentence in "\n".join(element.value for element in app.text)
    assert app.text_input(key="other").value == other
    assert app.text_area(key="draft_a").value == long


def test_models_with_different_tokenizers_show_head_matches(
    folders: tuple[str, str], family_folder: Callable[[str], Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    app = page_of((folders[0], str(family_folder("roberta"))))
    assert not app.exception
    assert "token id 0 is “[PAD]” in A" in info_text(app)
    assert [element.value for element in app.header] == ["Which heads have similar attention?"]
    a, b = (
        shared_cache.open_checkpoint(str(folder), "") for folder in (folders[0], family_folder("roberta"))
    )
    result = HeadMatches().of(a.trace(TEXT), b.trace(TEXT))
    assert result.finding in page_text(app).replace("\\", "")
    cut, best = (element.value for element in app.dataframe)
    assert "".join(cut["tokens of B"].iloc[1:-1]).replace(" ", "") == TEXT.replace(" ", "")
    assert_repeatable(sorted(best["similarity"]), sorted(result.table()["similarity"]))
    frame = table_of_snippets(app, capfdbinary)
    assert_repeatable(frame["similarity"], result.table()["similarity"])
    row, column = result.strongest
    press(app, f"Show head {result.name(column, 1)} in B")
    address = url_params(app)
    assert f"{address['layer']}.{address['head']}" == result.name(column, 1)
    assert address["model"] == str(family_folder("roberta"))
    assert row in range(12)


@pytest.mark.prove
def test_head_matches_of_one_tokenizer_are_shown_on_request(folders: tuple[str, str]) -> None:
    app = press(page_of(folders), "Compare all heads")
    assert not app.exception
    a, b = models_of(folders)
    assert HeadMatches().of(a.trace(TEXT), b.trace(TEXT)).finding in page_text(app).replace("\\", "")


@pytest.mark.prove
def test_pair_task_asks_for_second_text(trained_folder: TrainedFolder) -> None:
    before = trained_folder("bert", "question-answering")
    asking = str(before), str(changed_folder(before))
    assert "Write sentence B under Your text" in info_text(page_of(asking))
    app = page_of(asking, b="the wide river led to a boat")
    assert not app.exception
    a, b = models_of(asking)
    result = AnswerChange().of(
        *(checkpoint.trace(TEXT, "the wide river led to a boat") for checkpoint in (a, b))
    )
    assert_repeatable(app.dataframe[2].value["a"], result.a)


@pytest.mark.prove
def test_layer_similarity_runs_as_job(folders: tuple[str, str]) -> None:
    app = press(page_of(folders), "Compare all layers")
    assert not app.exception
    a, b = models_of(folders)
    result = LayerSimilarity().of(a, b, baseline_sentences())
    assert result.finding in page_text(app).replace("\\", "")
    assert any("LayerSimilarity()" in code.value for code in app.get("code"))
    assert f"Linear CKA over {result.examples:,} tokens" in page_text(app)


def test_invalid_sentence_is_reported_at_its_field(folders: tuple[str, str]) -> None:
    app = page_of(folders, sentences_source="paste")
    assert not any(button.label == "Compare all layers" for button in app.button)
    app.text_area(key="many_pasted").set_value("we left\n" + "we " * 400).run()
    press(app, "Compare all layers")
    assert not app.exception
    assert "Line 2" in "\n".join(element.value for element in app.text)


def test_hostile_text_is_shown_as_text(folders: tuple[str, str]) -> None:
    app = page_of(folders, a=HOSTILE, b=HOSTILE)
    assert not app.exception
    bad = page_of((folders[0], HOSTILE))
    assert not bad.exception
    for page in (app, bad):
        markdown = "\n".join(
            element.value for part in (page.markdown, page.caption, page.info) for element in part
        )
        assert not any(piece in markdown for piece in ("<img", "**bold**", "$x^2$", ":red[no]", "](http"))


def test_treemap_shows_relative_change_of_parameters(folders: tuple[str, str]) -> None:
    a, b = models_of(folders)
    result = ParameterChange().of(a, b)
    for dark in (False, True):
        tree = changed_treemap(result, dark).data[0]
        assert [*tree.ids] == [area.id for area in areas(result.inventory)]
        texts: dict[str, Any] = dict(zip(tree.ids, tree.customdata, strict=True))
        for row in result.tensors:
            assert texts[row.parameter.name] == f"changed by {row.relative:.3%}"
        assert texts["model"] == f"changed by {result.relative():.3%}"
        inner = [row for row in result.tensors if row.parameter.group == "layer 2"]
        expected = np.sqrt(sum(row.change**2 for row in inner) / sum(row.norm**2 for row in inner))
        assert texts["layer 2"] == f"changed by {expected:.3%}"
    nothing = changed_treemap(ParameterChange().of(a, a), dark=False)
    assert {*nothing.data[0].customdata} == {"changed by 0.000%"}
    assert changed_checkpoint(a).description.weights_sha256 == b.description.weights_sha256
