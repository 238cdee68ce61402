"""Test the Heads page: all of its views show the same results as the library."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import bert_probe
from bert_probe.analyses.attention.heads import MEASURES
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.core.question import Question
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import shared_cache
from bert_probe.text.words import word_lens
from bert_probe.ui import figures
from bert_probe.views import measures
from tests.helpers.gate import prove_unless
from tests.helpers.opening import open_minilm
from tests.helpers.pages import HOSTILE, error_text, open_page, page_text, question_in_url, table_of_snippets
from tests.helpers.waiting import wait_until

TEXT = "Almost before we knew it, we had left the ground."


def part(name: str, a: str = TEXT, **address: str) -> AppTest:
    app = open_page("heads", a=a, heads_part=name, **address)
    assert not app.exception
    return app


def button(app: AppTest, label: str) -> Any:
    return next(candidate for candidate in app.button if candidate.label.startswith(label))


def finished(app: AppTest) -> AppTest:
    """Rerun the app until all jobs of its page have ended, and return it."""

    def done() -> bool:
        running = any(button.label == "Cancel" for button in app.button)
        if running:
            app.run()
        return not running

    wait_until(done, 60)
    assert not app.exception
    return app


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def test_all_measures_are_offered_and_explained() -> None:
    assert set(measures.MEASURES) == set(MEASURES)
    app = part("profiles")
    profiles = open_minilm().trace(TEXT)
    values = bert_probe.Heads().of(profiles).values
    for measure in MEASURES:
        app.selectbox(key="measure").set_value(measure).run()
        assert not app.exception
        frame = app.dataframe[0].value
        assert list(frame)[:4] == ["layer", "head", measure, "label"]
        assert set(frame) == {"layer", "head", "label", *MEASURES}
        assert frame[measure].is_monotonic_decreasing
        first = frame.iloc[0]
        assert first[measure] == values[measure].max()
        assert first[measure] == values[measure][first["layer"] - 1, first["head"] - 1]
        assert measures.MEASURES[measure].meaning[:20] in page_text(app).replace("\\", "")
        assert app.query_params.get("measure", "previous") in (measure, [measure])


def test_profiles_of_words_differ_from_profiles_of_tokens() -> None:
    app = part("profiles", "Mehdi loves Tallahassee", words="1", measure="next")
    values = bert_probe.Heads(words=True).of(open_minilm().trace("Mehdi loves Tallahassee")).values
    assert app.dataframe[0].value["next"].max() == values["next"].max()


def test_initial_pair_shows_best_head() -> None:
    app = part("find")
    trace = open_minilm().trace(TEXT)
    best = bert_probe.FindHeads([("ground", "left")]).of(trace).ranked[0]
    frame = app.dataframe[0].value
    assert (frame["layer"][0], frame["head"][0]) == (best.layer + 1, best.head + 1)
    assert frame["weight"][0] == best.weight
    assert f"**{best.weight:.4f}**" in page_text(app)
    label = bert_probe.Heads(words=True).of(trace).labels[best.layer][best.head] or "no label"
    scope = f"On the whole text, layer {best.layer + 1}, head {best.head + 1}: **{label}**"
    assert scope in [element.value for element in app.markdown]
    assert "find_pairs" not in app.query_params


def test_pairs_are_added_ranked_by_mean_and_removed() -> None:
    trace = open_minilm().trace(TEXT)
    app = part("find", find_pairs="11-9,4-5")
    ranked = bert_probe.FindHeads([("ground", "left"), ("knew", "it")]).of(trace).ranked
    assert app.dataframe[0].value["weight"].tolist() == [head.weight for head in ranked]
    assert app.dataframe[0].value["rank_in_row"].tolist() == [head.rank for head in ranked]
    assert "averaged over 2 pairs" in page_text(app)
    button(app, "Add a pair").click().run()
    assert app.query_params["find_pairs"] in ("11-9,4-5,11-9", ["11-9,4-5,11-9"])
    app.get("pills")[0].set_value(1).run()
    button(app, "Remove this pair").click().run()
    assert app.query_params["find_pairs"] in ("11-9,11-9", ["11-9,11-9"])
    last = button(app, "Remove this pair")
    for _ in range(2):  # a double click, whose second click comes when the pair has been removed
        last.click().run()
    assert "find_pairs" not in app.query_params
    assert not any(element.label == "Remove this pair" for element in app.button)
    assert not app.exception


def test_pairs_are_those_of_the_words_of_another_model(family_folder: Callable[[str], Path]) -> None:
    text, folder = "it's river don't", str(family_folder("roberta"))
    app = part("find", text, model=folder)
    traces = shared_cache.open_checkpoint(folder, "").trace(text), open_minilm().trace(text)
    assert len(traces[0].encoding) == len(traces[1].encoding)
    assert len(word_lens(traces[0]).units) < len(word_lens(traces[1]).units)
    app.selectbox(key="draft_model").set_value(BUILT_IN)
    button(app, "Run").click().run()
    assert not app.exception
    assert "6 layers × 12 heads" in page_text(app)
    assert "find_pairs" not in app.query_params


def test_pairs_survive_page_change_but_not_text_change() -> None:
    app = part("find", find_pairs="4-5")
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/heads.py").run()
    assert app.query_params["find_pairs"] in ("4-5", ["4-5"])
    app.text_area(key="draft_a").set_value("we left")
    button(app, "Run").click().run()
    assert not app.exception
    assert "find_pairs" not in app.query_params


def test_nonexistent_pair_is_reported() -> None:
    app = part("find", find_pairs="4-5,77-1")
    assert r"This text has no word pair 77\-1" in page_text(app)
    assert "the mean over" not in page_text(app)


def test_text_without_words_has_default_pair() -> None:
    assert len(part("find", "?!").dataframe[0].value) == 72


def test_rows_of_long_text_keep_largest_and_requested_columns() -> None:
    values = np.array([[0.1, 0.5, 0.0, 0.2], [0.3, 0.0, 0.0, 0.2]])
    assert figures.largest_columns(values, 2, {2}) == [1, 2]
    assert figures.largest_columns(values, 3, {2}) == [0, 1, 2]
    assert figures.largest_columns(values, 9, {2}) == [0, 1, 2, 3]
    assert figures.largest_columns(values, 1, {2, 3}) == [2, 3]
    assert "32 of 62 words" in page_text(part("find", "word " * 60))


def test_ablation_of_head_set_matches_library() -> None:
    app = part("ablation", off="3.7,5", replacement="mean")
    heads = [(2, 6), *((4, head) for head in range(12))]
    result = bert_probe.HeadAblation(heads, "mean").of(open_minilm().trace(TEXT))
    assert metrics(app) == {
        "Mean change of tokens": f"{result.mean_token_change:.4f}",
        "[CLS], the first token": f"{result.cls_change:.4f}",
        "Pooler": f"{result.pooler_change:.4f}",
    }
    frame = app.dataframe[0].value
    assert frame["change"].tolist() == sorted(result.token_change, reverse=True)
    app.multiselect(key="off").set_value(["1.1"]).run()
    assert metrics(app)["Mean change of tokens"] != f"{result.mean_token_change:.4f}"
    assert app.query_params["off"] in ("1.1", ["1.1"])


def test_empty_and_unknown_head_set_are_reported() -> None:
    app = part("ablation", off="")
    assert "Select at least one head" in page_text(app)
    assert not app.metric
    app = part("ablation", off="9.9,1.2")
    assert r"Unknown values in the URL are ignored: 9\.9" in page_text(app)
    assert app.multiselect(key="off").value == ["1.2"]


def test_default_heads_have_named_pattern() -> None:
    (name,) = part("ablation").multiselect(key="off").value
    layer, head = map(int, name.split("."))
    label = bert_probe.Heads().of(open_minilm().trace(TEXT)).labels[layer - 1][head - 1]
    assert label not in ("", "broad")


def test_long_text_shows_single_similarity() -> None:
    app = part("ablation", "word " * 60)
    which = next(group for group in app.get("button_group") if group.key == "ablation_similarity")
    assert which.value == "difference"


def test_missing_pooler_is_reported(family_folder: Callable[[str], Path]) -> None:
    app = part("ablation", "we left", model=str(family_folder("distilbert")))
    assert metrics(app)["Pooler"] == "—"


@pytest.mark.parametrize("which", ["set", "each"])
def test_model_without_head_outputs_is_refused(family_folder: Callable[[str], Path], which: str) -> None:
    app = part("ablation", "we left", model=str(family_folder("longformer")), ablation=which)
    assert "heads cannot be ablated" in error_text(app)


def test_head_sweep_is_ranked_and_cached() -> None:
    app = part("ablation", ablation="each")
    assert not app.dataframe
    button(app, "Ablate each head in turn").click().run()
    finished(app)
    expected = bert_probe.HeadAblationSweep().of(open_minilm().trace(TEXT)).table()
    assert app.dataframe[0].value["mean_token_change"].tolist() == expected["mean_token_change"].tolist()
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/heads.py").run()
    assert len(app.dataframe[0].value) == 72
    app.text_area(key="draft_a").set_value("we left")
    button(app, "Run").click().run()
    assert not app.dataframe, "another text has other effects"


def test_example_sentences_are_profiled() -> None:
    app = part("many")
    button(app, "Profile 40 sentences").click().run()
    finished(app)
    expected = bert_probe.HeadMeans().of(open_minilm(), baseline_sentences())
    frame = app.dataframe[0].value
    assert list(frame) == ["layer", "head", "previous", "previous_low", "previous_high", "label"]
    first = frame.iloc[0]
    head = (first["layer"] - 1, first["head"] - 1)
    assert first["previous_high"] == expected.high["previous"][head]
    app.toggle(key="words").set_value(True).run()
    assert not app.dataframe, "words need a new profile"


def test_pasted_sentences_are_kept_and_invalid_line_is_named() -> None:
    app = part("many", sentences_source="paste")
    assert not any(element.label.startswith("Profile") for element in app.button)
    pasted = "We left.\n\n" + "word " * 600
    app.text_area(key="many_pasted").set_value(pasted).run()
    button(app, "Profile 2 sentences").click().run()
    finished(app)
    assert "Line 3: The text has 602 tokens" in error_text(app)
    assert app.text_area(key="many_pasted").value == pasted
    assert button(app, "Profile 2 sentences")
    app.switch_page("../../pages/tokens.py").run()
    app.switch_page("../../pages/heads.py").run()
    assert app.text_area(key="many_pasted").value == pasted
    app.text_area(key="many_pasted").set_value("We left.").run()
    button(app, "Profile 1 sentence").click().run()
    finished(app)
    assert len(app.dataframe[0].value) == 72


def test_sentence_profile_needs_no_page_text() -> None:
    assert "The text is empty" not in error_text(part("many", ""))


@pytest.mark.parametrize("name", ["profiles", "find", "ablation"])
def test_hostile_text_is_not_rendered_as_markdown(name: str) -> None:
    app = part(name, HOSTILE, find_pairs="1-2,3-4")
    markdown = "\n".join(element.value for elements in (app.markdown, app.caption) for element in elements)
    for piece in ("<img", "**bold**", "$x^2$", ":red[no]", "](http"):
        assert piece not in markdown


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("name", "address", "start"),
    prove_unless(
        lambda case: case[2] != "Ablate each",
        [
            ("profiles", {"words": "1"}, ""),
            ("find", {"find_pairs": "4-2,10-13"}, ""),
            ("ablation", {"off": "3.7,5", "replacement": "mean"}, ""),
            ("ablation", {"ablation": "each"}, "Ablate each"),
            ("many", {"words": "1"}, "Profile 40"),
        ],
    ),
)
def test_python_and_shell_snippets_produce_same_table(
    name: str,
    address: dict[str, str],
    start: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    app = part(name, "-5 degrees, it's \"cold\", it's: we said it's cold", **address)
    if start:
        button(app, start).click().run()
        finished(app)
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("\n".join(baseline_sentences()), encoding="utf-8")
    frame = table_of_snippets(app, capfdbinary)
    if name in ("profiles", "find"):
        table = app.dataframe[0].value
        column = "weight" if name == "find" else "previous"
        assert sorted(table[column]) == sorted(frame[column])


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("name", "question", "more", "start"),
    prove_unless(
        lambda case: case[0] != "many",
        [
            ("profiles", bert_probe.Heads(words=True), {"measure": "next"}, ""),
            ("find", bert_probe.FindHeads([(11, 9), (4, 5)]), {}, ""),
            ("find", bert_probe.FindHeads([("ground", "it"), ("[CLS]", "we:2")]), {}, ""),
            ("ablation", bert_probe.HeadAblation([(2, 6), (4, 0)], "mean", show="tokens"), {}, ""),
            ("ablation", bert_probe.HeadAblationSweep("mean"), {"ablation": "each"}, "Ablate each"),
            ("many", bert_probe.HeadMeans(words=True), {}, "Profile 40"),
        ],
    ),
)
def test_url_contains_displayed_question(
    name: str, question: Question, more: dict[str, str], start: str
) -> None:
    # The additional URL parameters belong to other pages and must not affect the question.
    app = part(name, **question.address(), **more, show="model", specials="0", layer="3", head="2")
    if start:
        button(app, start).click().run()
        finished(app)
    again = question_in_url(app, type(question))
    trace = open_minilm().trace(TEXT)
    assert again.resolved(trace) == question.resolved(trace)
    assert f"bert_probe.{again.resolved(trace)!r}.of(" in app.get("code")[0].value


def test_layer_in_url_selects_all_of_its_heads() -> None:
    app = part("ablation", off="3.7,5")
    address = {"off": "3.7,5", "ablation_table": "tokens"}
    question = bert_probe.HeadAblation.from_address(address, open_minilm().description)
    assert len(question.heads) == 13
    assert f"bert_probe.{question!r}.of(trace)" in app.get("code")[0].value


def test_head_label_is_shown_next_to_its_name() -> None:
    options = part("ablation").multiselect(key="off").options
    assert options[0] == "layer 1, all heads"
    assert all(re.fullmatch(r"\d+\.\d+( \S.*)?|layer \d+, all heads", option) for option in options)
