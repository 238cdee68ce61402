"""Test the Answer page: each task, its explanations, and invalid requests."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import (
    AttributionFaithfulness,
    FillMask,
    FindAnswer,
    HeadAttribution,
    LabelTokens,
    Lens,
    SentenceSimilarity,
)
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.outputs import fill_mask, find_answer, tuned_lens
from bert_probe.analyses.retrieval import calibration as calibrations
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import permissions
from bert_probe.runtime.permissions import Permissions
from bert_probe.ui import attribution, blocks
from bert_probe.ui import lens as lens_part
from bert_probe.views.contributions import sentence_similarity_heatmap
from bert_probe.views.text import shorten
from tests.helpers import trained
from tests.helpers.exactness import assert_repeatable
from tests.helpers.families import PAIR, TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.pages import HOSTILE, error_text, open_page, page_text, table_of_snippets, url_params
from tests.helpers.questions import SENTENCES

Folders = Callable[[str, str], Path]
Trained = Callable[[str, str], Checkpoint]


@pytest.fixture(autouse=True)
def skipped_attributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip attributions unless a test needs them, because they take hundreds of forward passes."""
    monkeypatch.setattr(attribution, "MAX_TOKENS_AT_ONCE", 0)


@pytest.mark.prove
def test_selected_word_is_masked(trained_on: Trained, trained_folder: Folders) -> None:
    folder = trained_folder("bert", "fill-mask")
    trace = trained_on("bert", "fill-mask").trace(TEXT)
    app = open_page("answer", a=TEXT, b="", model=str(folder), mask="5", top="10")
    assert not app.exception
    expected = FillMask(mask=5, top=10).of(trace).table()
    predictions = app.dataframe[0].value
    assert predictions["token"].tolist() == expected["token"].tolist()
    assert_repeatable(predictions["probability"].to_numpy(), expected["probability"].to_numpy())
    assert "in place of it" in page_text(app), "the fifth token"
    assert url_params(app)["mask"] == "5"
    default_page = open_page("answer", a=TEXT, b="", model=str(folder))
    assert "in place of ground" in page_text(default_page)
    assert "mask" not in default_page.query_params


def test_text_with_masks_and_targets_is_answered(trained_folder: Folders) -> None:
    app = open_page(
        "answer",
        a="The [MASK] and the [MASK]",
        b="",
        model=str(trained_folder("bert", "fill-mask")),
        targets="unknown,river",
    )
    assert not app.exception
    assert "in place of" not in page_text(app)
    assert "Each of the 2 masks is predicted independently" in page_text(app)
    assert "“unknown” is not in the vocabulary" in page_text(app)
    assert set(app.dataframe[0].value["token"]) == {"un", "river"}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("task", "words"),
    [
        (
            "text-classification",
            "This is single-label classification: the probabilities of all classes sum to 1.",
        ),
        ("token-classification", "One label per token."),
        ("question-answering", "Some answer always ranks first"),
        ("next-sentence-prediction", "B, then A"),
    ],
)
def test_all_tasks_are_drawn_and_their_snippets_reproduce_table(
    task: str, words: str, trained_folder: Folders, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    app = open_page("answer", a=PAIR, b=TEXT, model=str(trained_folder("bert", task)))
    assert not app.exception
    assert words in page_text(app)
    assert "A probability is the model's confidence" in page_text(app).replace("\\", "")
    table = table_of_snippets(app, capfdbinary)
    assert_repeatable(table["probability"], app.dataframe[0].value["probability"])
    assert f"--task {task}" in app.get("code")[1].value


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("task", ["fill-mask", "text-classification", "token-classification"])
def test_first_layer_with_final_answer_is_named(
    task: str, trained_on: Trained, trained_folder: Folders
) -> None:
    app = open_page("answer", a=TEXT, b="", model=str(trained_folder("bert", task)), mask="5")
    assert not app.exception
    word = 5 if task == "fill-mask" else None
    result = Lens(task, mask=word).of(trained_on("bert", task).trace(TEXT))
    name, layer = result.names[-1][0][0], int(result.settled[0])
    first = f"**{name}** ranks first from layer {layer} (of 3) onward."
    only = f"**{name}** ranks first only at the last layer, 3."
    assert ((only if layer == 3 else first) in page_text(app).replace("\\", "")) == (
        task != "token-classification"
    )
    curves = len(app.get("plotly_chart"))
    assert curves == {"fill-mask": 4, "text-classification": 2, "token-classification": 1}[task]
    assert any(f"{Lens(task, mask=word)!r}.of(trace).table()" in code.value for code in app.get("code"))


@pytest.mark.parametrize("by", ["rank", "entropy"])
def test_lens_shows_ranks_and_entropies(by: str, trained_on: Trained, trained_folder: Folders) -> None:
    app = open_page(
        "answer", a=TEXT, b="", model=str(trained_folder("bert", "fill-mask")), mask="5", lens_by=by
    )
    assert not app.exception
    trace = trained_on("bert", "fill-mask").trace(TEXT)
    result = Lens("fill-mask", mask=5).of(trace)
    followed = Lens("fill-mask", targets=result.names[-1][0], mask=5).of(trace)
    traces = json.loads(app.get("plotly_chart")[1].proto.spec)["data"]
    if by == "entropy":
        assert [line["name"] for line in traces] == ["entropy"]
        assert_repeatable(_numbers(traces[0]["y"]), result.entropy[:, 0])
    else:
        assert len(traces) == 5
        first = int(result.ids[-1, 0, 0])
        ranks = [
            row[list(ids).index(first)]
            for row, ids in zip(followed.ranks[:, 0], followed.ids[:, 0], strict=True)
        ]
        assert _numbers(traces[0]["y"]) == pytest.approx(ranks)


def test_figures_are_drawn_for_first_masks_only(trained_on: Trained, trained_folder: Folders) -> None:
    count, shown = lens_part.MAX_MASKS + 2, lens_part.MAX_MASKS
    text = "[MASK] the " * count
    app = open_page("answer", a=text, b="", model=str(trained_folder("bert", "fill-mask")), lens_by="rank")
    assert not app.exception
    assert app.dataframe[0].value["position"].nunique() == count
    assert page_text(app).count(f"The first {shown} of {count} masks are shown.") == 2
    charts = [json.loads(chart.proto.spec)["data"] for chart in app.get("plotly_chart")]
    assert len(charts) == 3 * shown, "a bar chart, curves and a grid for each mask"
    trace = trained_on("bert", "fill-mask").trace(text)
    result = Lens("fill-mask").of(trace)
    for number, curves in enumerate(charts[shown::2]):
        words = Lens("fill-mask", targets=result.names[-1][number]).of(trace)
        assert [line["name"] for line in curves] == [shorten(name) for name in words.names[-1][number]]
        first = int(words.ids[-1, number, 0])
        ranks = words.ranks[:, number][words.ids[:, number] == first]
        assert _numbers(curves[0]["y"]) == pytest.approx(ranks)


@pytest.mark.parametrize("is_public", [True, False])
def test_pages_of_a_public_server_have_the_limits_of_requests(
    is_public: bool, trained_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlm, answers = (str(trained_folder("bert", task)) for task in ("fill-mask", "question-answering"))
    if is_public:
        monkeypatch.setattr(permissions, "_current", Permissions(models=(mlm, answers)))
    monkeypatch.setattr(fill_mask, "MAX_LOGITS", 400)
    monkeypatch.setattr(find_answer, "MAX_SPANS", 20)
    app = open_page("answer", a="the [MASK] boat", b="", model=mlm)
    assert app.dataframe[0].value["position"].nunique() == 1
    refusal = " logits were requested, but the app computes at most 400"
    assert any(refusal in info.value for info in app.info) == is_public
    app = open_page("answer", a=PAIR, b=TEXT, relation="pair", model=answers)
    assert (" spans, but the app computes at most 20." in error_text(app)) == is_public
    assert not app.exception


def test_tuned_lens_is_trained_and_selected_with_its_losses(
    trained_folder: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lens_part, "STEPS", 2)
    folder = tmp_path / "model"
    shutil.copytree(trained_folder("bert", "fill-mask"), folder)
    app = open_page("answer", a=TEXT, b="", model=str(folder), mask="5")
    assert "lens_through" not in app.session_state, "no lens has been trained yet"

    def give(lines: str) -> None:
        app.text_area(key="tune_pasted").set_value(lines).run()

    def train(label: str) -> None:
        next(button for button in app.button if button.label == label).click().run()
        assert not app.exception

    give("One line")
    train("Train on 1 line")
    assert "needs at least two different lines" in error_text(app)
    give("\n".join([*SENTENCES, HOSTILE]))
    train("Train on 5 lines")
    (file,) = folder.glob("tuned-lens-*.safetensors")
    assert f"{file.name}" in app.success[0].value.replace("\\", "")
    app = open_page("answer", a=TEXT, b="", model=str(folder), mask="5", lens_through="tuned")
    assert not app.exception
    checkpoint = bert_probe.load(folder)
    lens = tuned_lens.load_lens(file, checkpoint)
    assert lens.verdict in page_text(app)
    table = next(element.value for element in app.dataframe if "logit lens" in element.value)
    assert table["tuned lens"].tolist() == lens.tuned.tolist()
    result = Lens("fill-mask", mask=5, tuned=str(file)).of(checkpoint.trace(TEXT))
    name, layer = result.names[-1][0][0], int(result.settled[0])
    first = f"**{name}** ranks first from layer {layer} (of 3) onward."
    assert (first if layer < 3 else f"**{name}** ranks first only at the last layer, 3.") in page_text(app)
    assert "(logit lens, because the tuned lens was trained on masks only)" in page_text(app)
    assert any(f"{result.question!r}.of(trace).table()" in code.value for code in app.get("code"))
    assert any(re.search("bert-probe tune-lens .*sentences.txt", code.value) for code in app.get("code"))


def _numbers(spec: Any) -> list[float]:
    """Return the values of an array in a Plotly figure, which may be encoded as base64."""
    if isinstance(spec, list):
        return spec
    return list(np.frombuffer(base64.b64decode(spec["bdata"]), np.dtype(spec["dtype"])))


def test_labels_and_answers_are_highlighted_in_text(trained_on: Trained, trained_folder: Folders) -> None:
    folder = trained_folder("bert", "token-classification")
    app = open_page("answer", a=TEXT, b="", model=str(folder), aggregation="first", outside="1")
    expected = LabelTokens("first", outside=True).of(trained_on("bert", "token-classification").trace(TEXT))
    text = next(element.value for element in app.markdown if "-background[" in element.value)
    assert all(f"**{part.label}**" in text for part in expected.spans)
    folder = trained_folder("bert", "question-answering")
    app = open_page("answer", a=PAIR, b=TEXT, model=str(folder), top="3")
    result = FindAnswer(3).of(trained_on("bert", "question-answering").trace(PAIR, TEXT))
    text = next(element.value for element in app.markdown if "-background[" in element.value)
    assert text.count("-background[") == len(result.answers)


def test_built_in_model_shows_sentence_similarity(minilm: Checkpoint) -> None:
    a, b = "A small boat crosses the river.", "The little ship went over the water."
    for relation in ("compare", "pair"):
        app = open_page("answer", a=a, b=b, relation=relation)
        result = SentenceSimilarity().of(minilm.trace(a), minilm.trace(b))
        assert not app.exception
        assert app.metric[0].value == f"{result.score:.4f}"
        assert app.metric[1].value == f"{result.specials_share:.4f}"
        assert "the sum of all 90 cells equals the cosine" in page_text(app)
        assert result.off < 1e-6
        scale = sentence_similarity_heatmap(result).drawing["scale"]
        assert scale.low <= result.percent.min() < result.percent.max() <= scale.high


def test_missing_second_text_is_reported(trained_folder: Folders) -> None:
    for model in ("", *(str(trained_folder("bert", task)) for task in trained.CLASSES if task[0] in "qn")):
        app = open_page("answer", a=TEXT, b="", model=model)
        assert not app.exception
        assert "sentence B under Your text" in app.info[0].value
        assert not app.get("download_button")


def test_missing_or_different_output_head_is_reported(
    family_folder: Callable[[str], Path], trained_folder: Folders
) -> None:
    app = open_page("answer", a=TEXT, b="", model=str(family_folder("bert")))
    assert not app.exception
    assert "has no trained task head, so it makes no predictions" in app.info[0].value
    app = open_page("answer", a=TEXT, b="", model=str(trained_folder("bert", "fill-mask")), task="nothing")
    assert "There is no task nothing; showing fill\\-mask" in page_text(app).replace(
        "showing fill-", "showing fill\\-"
    )


def test_checkpoint_labels_are_shown_as_text(tmp_path: Path) -> None:
    names = {0: HOSTILE, 1: "**b** :red[x]", 2: "O"}
    for task in ("text-classification", "token-classification"):
        trained.build("bert", task, tmp_path / task, id2label=names)
        app = open_page("answer", a=HOSTILE, b="", model=str(tmp_path / task))
        assert not app.exception
        assert not error_text(app)
        markdown = "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
        for piece in (r"<img", r"\*\*b", r":red\[[xn]", r"\$x", r"\]\("):
            assert not re.search(rf"(?<!\\){piece}", markdown), piece


def test_highlighting_keeps_text_and_spaces() -> None:
    marks = [
        blocks.HighlightSpan(4, 6, "X", "violet"),
        blocks.HighlightSpan(6, 8, "X", "violet"),
        blocks.HighlightSpan(9, 12, "X", "violet"),
        blocks.HighlightSpan(13, 15, "Y", "red"),
    ]
    marked_text = blocks.highlight_markdown("one two2 six in end", marks)
    assert marked_text == (
        "one :violet-background[two2] :violet-background[six] :violet[**X**] "
        " :red-background[in] :red[**Y**]  end"
    )
    long = "x" * 1_000
    assert len(blocks.highlight_markdown(long, [])) < 500
    assert blocks.span_colors(["b", "a", "b"]) == {"a": "violet", "b": "orange"}


def test_long_context_is_answered_without_truncation(trained_folder: Folders) -> None:
    app = open_page(
        "answer", a=PAIR, b=" ".join([TEXT] * 30), model=str(trained_folder("bert", "question-answering"))
    )
    assert not app.exception
    assert not error_text(app)
    assert "overlapping windows" in page_text(app)
    assert "--truncate" in shlex.split(app.get("code")[1].value)
    assert np.isfinite(app.dataframe[0].value["probability"]).all()
    assert bert_probe.FindAnswer().task == "question-answering"


@pytest.mark.parametrize(
    ("task", "address", "question"),
    prove_unless(
        lambda case: case[0] in {"fill-mask", "next-sentence-prediction"},
        [
            ("fill-mask", {"mask": "5"}, AttributionFaithfulness("fill-mask", at=5, words=True)),
            (
                "text-classification",
                {"attribution_words": "0", "attribution_target": "B-LOC"},
                AttributionFaithfulness(target="B-LOC"),
            ),
            (
                "token-classification",
                {"attribution_at": "4", "removal": "removed"},
                AttributionFaithfulness(at=4, words=True, removal="removed"),
            ),
            (
                "question-answering",
                {"attribution_target": "2"},
                AttributionFaithfulness(target="2", words=True),
            ),
            ("next-sentence-prediction", {"attribution": "heads"}, HeadAttribution()),
        ],
    ),
)
def test_attribution_of_each_task_matches_library(
    task: str,
    address: dict[str, str],
    question: AttributionFaithfulness | HeadAttribution,
    trained_on: Trained,
    trained_folder: Folders,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attribution, "MAX_TOKENS_AT_ONCE", 100)
    pair = task[0] in "qn"
    text, other = (PAIR, TEXT) if pair else (TEXT, "")
    app = open_page("answer", a=text, b=other, model=str(trained_folder("bert", task)), **address)
    assert not app.exception
    result = question.of(trained_on("bert", task).trace(text, other if pair else None))
    if isinstance(result, HeadAttributionResult):
        layer, head = np.unravel_index(int(np.abs(result.changes).argmax()), result.changes.shape)
        assert f"Without **layer {layer + 1}, head {head + 1}**" in page_text(app)
    else:
        explanation = next(iter(result.explanations.values()))
        assert f"**{explanation.number}** is {explanation.value:.4f}." in page_text(app).replace("\\", "")
        table = next(element.value for element in app.dataframe if "Comprehensiveness" in element.value)
        expected = result.table()["comprehensiveness"].to_numpy()
        assert "Leave one out is not compared" in page_text(app)
        assert "no method is better" not in page_text(app)
        # The scores accumulate the rounding errors of many forward passes.
        assert table["Comprehensiveness"].to_numpy() == pytest.approx(expected, rel=1e-3, abs=1e-4)
    line = f"{result.question!r}.of(trace).table()"
    assert any(line in code.value for code in app.get("code"))


@pytest.mark.prove
def test_similarity_attribution_of_built_in_model_matches_library(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "MAX_TOKENS_AT_ONCE", 100)
    a, b = "Small boats float", "A ship sails"
    app = open_page("answer", a=a, b=b, attribution_method="decompx")
    assert not app.exception
    result = AttributionFaithfulness(words=True).of(minilm.trace(a), minilm.trace(b))
    best = result.explanations[result.best]
    word = max(
        (unit for unit in best.units if not unit.special),
        key=lambda unit: best.scores[best.units.index(unit)],
    )
    assert f"“{word}” has the largest score by" in page_text(app)
    assert "Scores and biases sum to the explained output" in page_text(app)
    assert "**Attention as an explanation:**" in page_text(app)
    next(button for button in app.button if button.label == "Attribute to input words").click().run()
    assert not app.exception
    assert "contribution of the reference texts differs from the cosine" in page_text(app)


def test_text_without_removable_words_is_reported(
    trained_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "MAX_TOKENS_AT_ONCE", 100)
    app = open_page("answer", a="[MASK]", b="", model=str(trained_folder("bert", "fill-mask")))
    assert not app.exception
    assert any("no word that can be removed" in element.value.replace("\\", "") for element in app.info)


def test_family_without_separate_layers_lists_available_methods(
    trained_folder: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "MAX_TOKENS_AT_ONCE", 100)
    app = open_page("answer", a=TEXT, b="", model=str(trained_folder("xlm", "text-classification")))
    assert not app.exception
    assert (
        "DecompX is unavailable: XLMModel changes the vectors between its layers, so they cannot be run"
        in page_text(app).replace("\\", "")
    )
    assert "**Attention as an explanation:**" not in page_text(app)
    table = next(element.value for element in app.dataframe if "Comprehensiveness" in element.value)
    assert table["Method"].tolist() == ["Leave one out", "Integrated gradients", "Random orders"]


def test_similarity_is_compared_with_reference_sentences(minilm: Checkpoint) -> None:
    app = open_page("answer", task="sentence-similarity", a="The boat sinks", b="The ship goes down")
    while "short English reference sentences" not in page_text(app):
        app.run()
    expected = bert_probe.SimilarityCalibration("model").of(minilm, calibrations.reference_sentences())
    score = app.metric[0].value
    higher = float((expected.random < float(score)).mean() * 100)
    match = re.search(r"\*\*(.*?)\*\* is higher than the cosine of \*\*(.*?)%\*\*", page_text(app))
    assert match is not None
    assert match[1] == score
    assert float(match[2]) == pytest.approx(higher, abs=0.11)
