"""The Train page: choose data and settings, start the training, and inspect and save the trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.evaluation.similarity_evaluation import SimilarityEvaluation
from bert_probe.analyses.outputs.evaluate import BASELINE_DESCRIPTIONS, MAIN_MEASURES, EvaluateResult
from bert_probe.analyses.outputs.fill_mask import TOP_K
from bert_probe.analyses.outputs.head_predictions import TAGS
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ExportError, ProbeError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, Checkpoint
from bert_probe.model.preflight import format_bytes
from bert_probe.model.trace import Array
from bert_probe.runtime import shared_cache
from bert_probe.server import callbacks
from bert_probe.server.sessions import Download
from bert_probe.text.datasets import to_file
from bert_probe.text.labeled_texts import MULTI_LABEL, NUMBER
from bert_probe.text.similarity_examples import SCORED, SimilarityExamples
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.training.training_result import TrainingResult
from bert_probe.ui import (
    blocks,
    figures,
    labeled_inputs,
    model_choice,
    second_model,
    sentence_input,
    state,
    train_data,
    train_running,
    workbench,
)
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import ExtraDownload, export, table_bytes
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text, named_rows
from bert_probe.ui.train_data import TrainingRows, is_plain
from bert_probe.ui.train_running import TrainingOutcome, training_curve
from bert_probe.views.heatmaps import confusion_heatmap


def render() -> None:
    """Draw the Train page."""
    blocks.heading(
        "Train",
        "Fine-tune the model on labeled texts, similar texts, tagged words, or plain text (masked-language "
        "modeling). The original checkpoint is not changed.",
    )
    state.follow_link()
    checkpoint = workbench.checkpoint()
    if train_running.is_running():
        train_running.draw_progress()
        return
    last = train_running.last_outcome()
    if last is not None:
        # Announce the result at the top of the page, because the section Result is below the settings.
        finding = describe_outcome(last)
        draw, end = _ENDS.get(last.training.ended, (st.success, "Training has ended."))
        draw(f"{end} {finding} The details are under Result, below the settings.")
    _choose(checkpoint)
    if last is not None:
        render_outcome(last)


_ENDS = {
    "stopped": (
        st.warning,
        "Training was stopped early: the button was pressed, or the browser was disconnected for too long.",
    ),
    "diverged": (st.warning, "Training was stopped early, because the loss was not finite."),
}
"""`TrainingResult.ended` → function that draws the message, and the start of the message."""


def _choose(checkpoint: Checkpoint) -> None:
    """Draw the widgets for data and settings, and the button that starts the training."""
    if train_running.failure():
        st.warning(state.escape(train_running.failure(), 1_000))
    training_data = train_data.choose_data()
    if training_data is None:
        return
    try:
        plan = train_data.choose_plan(checkpoint, training_data)
    except ProbeError as error:
        blocks.error_box(error, "Change the data or the settings. Your other settings are kept.")
        return
    last = train_running.last_outcome()
    if last is not None and not last.folder:
        st.caption("Another training discards the model under Result, which was not saved to a folder.")
    if st.button("Start training", type="primary"):
        with callbacks.uninterrupted():
            now = workbench.request()
            train_running.start(training_data, plan, (now.model, now.revision))
        st.rerun()


_MAX_TEXTS = 10
"""Maximum number of texts in a list on the page. The export contains all texts."""
_LISTS = {"wrong": "Most confident errors", "uncertain": "Least certain"}
_FOLDER, _REPLACE = "train_folder", "train_replace"
_HELD_OUT_FILE = "held-out.csv"


def render_outcome(outcome: TrainingOutcome) -> None:
    """Draw the result of a training run."""
    training, evaluation = outcome.training, outcome.evaluation
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.header("Result", anchor=False, width="content")
        st.space("stretch")
        export(
            training,
            "training",
            _data_files(outcome),
            "Loss and held-out metric at each evaluated step.",
            label="Export training history",
        )
        if evaluation is not None:
            export(
                evaluation,
                "evaluation",
                _evaluation_files(training, evaluation),
                label="Export evaluation",
            )
        elif outcome.mask_evaluation is not None:
            lines: ExtraDownload = ("The held-out lines", SENTENCES_FILE, partial(_file, training.held_out))
            masks = partial(table_bytes, outcome.mask_evaluation.showing(show="masks"), "csv")
            more: list[ExtraDownload] = [("All masked tokens", "masks.csv", masks), lines]
            export(outcome.mask_evaluation, "masked-words", more, label="Export evaluation")
    text = describe_outcome(outcome)
    st.markdown(text)
    if evaluation is not None:
        _comparison(training, evaluation, text)
    elif outcome.mask_evaluation is not None:
        values = outcome.mask_evaluation.measures
        frequent = values["most_frequent_first_guess"]
        bars = {"this model": values["first_guess"], "most frequent token": frequent}
        interval = values["first_guess_low"], values["first_guess_high"]
        blocks.chart(comparison_bars(bars, interval, "accuracy"), text.replace("*", ""))
    for warning in training.warnings:
        st.warning(state.escape(warning, 1_000))
    for note in training.notes:
        st.caption(state.escape(note, 1_000))
    _compare_models(outcome)
    _save(outcome)
    if evaluation is not None:
        _classes(outcome, evaluation)
        _texts(outcome, evaluation)
    elif is_plain(training.data):
        _plain_texts(outcome)
    with st.expander("Training curve"):
        blocks.chart(
            training_curve(training.history, training.measure, training.history[-1].step, training.best),
            "Loss and held-out metric by step",
            key="course of the outcome",
        )


# ---------------------------------------------------------------- evaluation


def describe_outcome(outcome: TrainingOutcome) -> str:
    """Return a Markdown sentence with the result of a training run on held-out data."""
    if outcome.evaluation is not None:
        return summary(outcome.evaluation)
    training = outcome.training
    if training.task == SENTENCE_SIMILARITY and training.held_out is not None:
        start, best = training.history[0], training.best
        name = training.measure[0].upper() + training.measure[1:]
        examples = f"{len(training.held_out.rows):,} held-out {training.held_out.kind}"
        return f"{name} on {examples}: **{best.measure:.4f}**; before training: {start.measure:.4f}."
    if outcome.mask_evaluation is None:
        return "No examples were held out, so the model was not evaluated."
    values, count = outcome.mask_evaluation.measures, len(outcome.mask_evaluation.tokens)
    low, high = values["first_guess_low"], values["first_guess_high"]
    return (
        f"Accuracy on {count:,} masked tokens of {len(outcome.training.held_out):,} held-out texts: "
        f"**{values['first_guess']:.1%}** (95% interval {low:.0%} to {high:.0%}); top-{TOP_K} accuracy: "
        f"{values[f'among_{TOP_K}']:.1%}; most frequent token: {values['most_frequent_first_guess']:.1%}."
    )


def _comparison(training: TrainingResult, evaluation: EvaluateResult, text: str) -> None:
    """Draw a bar chart that compares the model with the baselines.

    Args:
        text: alternative text of the chart, in Markdown.
    """
    measure, values = MAIN_MEASURES[evaluation.kind], evaluation.measures
    low = values.get(f"{measure}_low")
    interval = None if low is None else (low, values[f"{measure}_high"])
    bars = {"this model": evaluation.main, **dict(_baselines(evaluation))}
    blocks.chart(comparison_bars(bars, interval, measure.replace("_", " ")), text.replace("*", ""))
    bag = (
        "The bag-of-words baseline is a logistic regression on words and pairs of words, trained on the "
        "same texts."
    )
    blocks.caveat(
        f"The best of {len(training.history)} checkpoints was selected on these texts, so the result is "
        f"slightly optimistic. {'' if evaluation.kind == TAGS else bag}"
    )


def _baselines(evaluation: EvaluateResult) -> list[tuple[str, float]]:
    return [
        (BASELINE_DESCRIPTIONS[name], evaluation.baselines[name])
        for name in BASELINE_DESCRIPTIONS
        if name in evaluation.baselines
    ]


def summary(evaluation: EvaluateResult) -> str:
    """Return a Markdown sentence that compares the held-out measure of the model with the baselines."""
    values, count, measure = evaluation.measures, len(evaluation.texts), MAIN_MEASURES[evaluation.kind]
    if evaluation.kind == NUMBER:
        baselines = [f"; {name}: {value:.4g}" for name, value in _baselines(evaluation)]
        return (
            f"Mean squared error on {count:,} held-out texts: **{evaluation.main:.4g}**{''.join(baselines)}."
        )
    name = "Exact-match accuracy" if evaluation.kind == MULTI_LABEL else "Accuracy"
    unit = "words" if evaluation.kind == TAGS else "texts"
    low, high = values.get(f"{measure}_low"), values.get(f"{measure}_high")
    interval = f" (95% interval {low:.0%} to {high:.0%})" if low is not None and high is not None else ""
    baselines = [f"; {name}: {value:.1%}" for name, value in _baselines(evaluation)]
    return f"{name} on {count:,} held-out {unit}: **{evaluation.main:.1%}**{interval}{''.join(baselines)}."


def comparison_bars(bars: Mapping[str, float], interval: tuple[float, float] | None, measure: str) -> Any:
    """Return a bar chart of a measure of the model and the baselines.

    Args:
        bars: label → value of the measure. The first entry is the model.
        interval: confidence interval of the model's value; None to draw no interval.
        measure: name of the measure.
    """
    names, values = [*bars], [*bars.values()]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=list(range(len(names))),
            orientation="h",
            marker={"color": [ACCENT, *[GRAY] * (len(names) - 1)]},
            customdata=[as_text(name) for name in names],
            hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
        )
    )
    if interval is not None:
        low, high = interval
        figure.add_scatter(
            x=[values[0]],
            y=[0],
            mode="markers",
            marker={"color": SECOND, "size": 1},
            error_x={
                "array": [high - values[0]],
                "arrayminus": [values[0] - low],
                "color": SECOND,
                "width": 6,
            },
            hovertemplate=f"95% interval: {low:.4f} to {high:.4f}<extra></extra>",
        )
    figures.apply_layout(
        figure,
        52 + 34 * len(names),
        right=16,
        bargap=0.35,
        xaxis={"title": measure, "range": None if measure == "mse" else [0, 1.005]},
        yaxis=named_rows(names),
    )
    return figure


def _classes(outcome: TrainingOutcome, evaluation: EvaluateResult) -> None:
    """Draw the metrics of each class, and the confusion matrix unless a text can have several labels.

    Draw nothing if the labels are numbers.
    """
    if evaluation.kind == NUMBER:
        return
    left, right = st.columns([1, 1], gap="large")
    with left:
        st.header("Metrics by class", anchor=False)
        table = evaluation.by_class()
        blocks.table(
            table,
            "Precision, recall, F1 and support of each class",
            column_config={
                name: st.column_config.NumberColumn(name, format="%.2f")
                for name in ("precision", "recall", "f1")
            },
        )
        blocks.caveat(
            "Precision: share of the predictions of a class that are correct. Recall: share of the "
            "examples of a class that are predicted correctly. F1: harmonic mean of precision and "
            "recall. Count (support): number of examples of the class."
        )
    if evaluation.kind == MULTI_LABEL:
        return
    with right:
        st.header("Confusion matrix", anchor=False)
        cell = heatmap(confusion_heatmap(evaluation), key="confusion")
        if cell is None:
            blocks.caveat("Pin a cell to see its texts.")
    if cell is not None:
        true, predicted = evaluation.labels[cell.row], evaluation.labels[cell.column]
        units = evaluation.where(cell.row, cell.column)
        st.markdown(f"**{state.escape(true)} predicted as {state.escape(predicted)}**: {len(units):,}")
        _list(outcome, evaluation, units, "cell")


def _texts(outcome: TrainingOutcome, evaluation: EvaluateResult) -> None:
    """Draw the texts with the most confident errors or the least certain predictions.

    For labels that are numbers, draw the texts with the largest errors.
    """
    if evaluation.kind == NUMBER:
        st.header("Largest errors", anchor=False)
        _list(outcome, evaluation, evaluation.confident_errors, "wrong")
        return
    st.header("Texts to inspect", anchor=False)
    name = state.segmented_control("train_texts", "Texts to inspect", _LISTS, "wrong")
    units = evaluation.confident_errors if name == "wrong" else evaluation.least_certain
    if not len(units):
        st.caption("All predictions are correct.")
    _list(outcome, evaluation, units, name)


def _list(
    outcome: TrainingOutcome, evaluation: EvaluateResult, units: Array | Sequence[int], key: str
) -> None:
    """Draw texts with their predictions, and for each a button that opens the text with the trained model.

    Args:
        units: indices of predictions of `evaluation`.
        key: prefix of the widget keys.
    """
    table = evaluation.listed(units[:_MAX_TEXTS])
    for number, row in enumerate(table.to_dict("records")):
        text, pair = row["text"], row.get("pair")
        markdown = state.escape(text, 300) + (f" / {state.escape(pair, 300)}" if pair else "")
        if evaluation.kind == TAGS:
            text, markdown = _word_in_sentence(outcome, evaluation, int(units[number]))
        _row(outcome, f"{markdown}  \n:gray[{_prediction(row)}]", f"{key} {number}", text, pair)
    if len(units) > _MAX_TEXTS:
        st.caption(
            f"The first {_MAX_TEXTS} of {len(units):,} predictions are shown. The export contains all "
            "predictions."
        )


def _plain_texts(outcome: TrainingOutcome) -> None:
    """Draw held-out texts, or else training texts, with buttons that open them on the Answer page."""
    texts = outcome.training.held_out or outcome.training.data
    st.header("Predict masked words", anchor=False)
    for number, text in enumerate(texts[:_MAX_TEXTS]):
        _row(outcome, state.escape(text, 300), f"fill {number}", text)
    if len(texts) > _MAX_TEXTS:
        st.caption(f"The first {_MAX_TEXTS} of {len(texts):,} texts are shown.")


def _row(outcome: TrainingOutcome, markdown: str, key: str, text: str, pair: str | None = None) -> None:
    """Draw a text and a button that opens it with the trained model.

    Args:
        markdown: Markdown that is drawn for the text.
        key: suffix of the widget key.
        text, pair: text to open, and its second segment or None.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        with st.container(width="stretch"):
            st.markdown(markdown)
        arguments = (outcome, text, pair)
        st.button("Open in Answer", key=f"open {key}", on_click=_open_text, args=arguments)


def _word_in_sentence(outcome: TrainingOutcome, evaluation: EvaluateResult, unit: int) -> tuple[str, str]:
    """Return the sentence that contains a word, as text and as Markdown with the word highlighted.

    Args:
        unit: index of the word in `evaluation`.
    """
    sentence: TaggedSentence = outcome.training.held_out[evaluation.rows[unit]]
    predicted = evaluation.named(evaluation.predicted[unit])
    start, end = sentence.spans[evaluation.words[unit]]
    span = blocks.HighlightSpan(start, end, predicted, blocks.COLOURS[0])
    return sentence.text, blocks.highlight_markdown(sentence.text, [span])


def _prediction(row: Mapping[Any, Any]) -> str:
    true, predicted = (state.escape(str(row[name])) or "none" for name in ("true", "predicted"))
    probability = f", probability {row['probability']:.1%}" if "probability" in row else ""
    return f"line {row['line']:,} · true **{true}** · predicted **{predicted}**{probability}"


def _evaluation_files(training: TrainingResult, evaluation: EvaluateResult) -> list[ExtraDownload]:
    """Return downloads of additional tables and of the data files that the exported code reads."""
    tables = {"classes": "Metrics by class", "confusion": "Confusion matrix", "texts": "All texts"}
    missing = {NUMBER: ("classes", "confusion"), MULTI_LABEL: ("confusion",)}.get(evaluation.kind, ())
    downloads: list[ExtraDownload] = [
        (label, f"{name}.csv", partial(table_bytes, evaluation.showing(show=name), "csv"))
        for name, label in tables.items()
        if name not in missing
    ]
    files = evaluation.inputs.sentences["files"]
    splits = (
        ("The held-out split", "rows", training.held_out),
        ("The training split", "training", training.data),
    )
    return [*downloads, *((label, files[name]["file"], partial(_file, rows)) for label, name, rows in splits)]


def _data_files(outcome: TrainingOutcome) -> list[ExtraDownload]:
    """Return downloads of the data files that the exported training code reads."""
    rows_by_name = {"data": outcome.data.rows, "held_out": outcome.data.held_out}
    return [
        (f"Data ({file})", file, partial(_file, rows))
        for name, file in outcome.training.files.items()
        if (rows := rows_by_name.get(name)) is not None
    ]


def _file(rows: TrainingRows, _csv_safe: bool) -> bytes:
    return to_file(rows)


# ---------------------------------------------------------------- before and after training


def _compare_models(outcome: TrainingOutcome) -> None:
    """Draw a button that opens a page that compares the trained model with the original model."""
    is_scored = _has_held_out_scores(outcome)
    help_text = (
        "Evaluate both models on the held-out pairs: correlations, the largest differences, and neighbors."
        if is_scored
        else "Compare attention heads, vectors, predictions and parameters of both models on a text."
    )
    label = "Compare with the model before training"
    st.button(label, icon=":material/compare:", help=help_text, on_click=_select_both, args=(outcome,))
    if outcome.training.question.to_json()["update"] == "head":
        st.caption(
            "Only the head was trained: attention, vectors and parameters of the encoder are unchanged."
        )


def _has_held_out_scores(outcome: TrainingOutcome) -> bool:
    held_out = outcome.training.held_out
    return isinstance(held_out, SimilarityExamples) and held_out.kind == SCORED


def _select_both(outcome: TrainingOutcome) -> None:
    """Select the original model as A, the trained model as B, and the held-out pairs as inputs."""
    trained, held_out = _model_name(outcome), outcome.training.held_out
    model, revision = outcome.original
    request = replace(workbench.request(), model=model, revision=revision)
    if _has_held_out_scores(outcome):
        pairs = SimilarityEvaluation.inputs.files["pairs"].parse(to_file(held_out), _HELD_OUT_FILE)
        sentence_input.replace_file("evaluate_pairs", labeled_inputs.EvaluationFile(_HELD_OUT_FILE, pairs))
        state.select("evaluate_part", "pairs")
        state.select("evaluate_pairs_from", "file")
    elif isinstance(held_out, SimilarityExamples):
        a, b = held_out.rows[0].texts[:2]
        request = replace(request, a=a, b=b, relation="compare")
    model_choice.agree([(model, revision), (trained, "")])
    workbench.submit(request)
    second_model.select(trained)
    state.leave_for("evaluate" if _has_held_out_scores(outcome) else "changes")


# ---------------------------------------------------------------- saving


def _save(outcome: TrainingOutcome) -> None:
    """Draw widgets that save the model to a folder, open it in the workbench, or download it."""
    with st.container(border=True, key="save"):
        st.markdown("**Save the model**")
        state.preserve(_FOLDER)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            with st.container(width=460):
                folder = st.text_input(
                    "Folder",
                    key=_FOLDER,
                    placeholder=f"{PurePath(outcome.data.name).stem}-model",
                    help="A folder on the machine that runs the app. The model is saved in the Hugging Face "
                    "format.",
                    persist_state="session",
                ).strip()
            is_replacing = st.checkbox("Replace an existing model", key=_REPLACE)
            is_clicked = st.button("Save")
        if is_clicked:
            _write(outcome, folder, is_replacing)
        status = (
            f"The model was saved in {state.escape(outcome.folder, 400)}. You can open the model on any page."
            if outcome.folder
            else "The model is in memory only and is lost when you close this page."
        )
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            st.caption(status, width="content")
            help_text = "Use this model in the workbench, on every page."
            st.button("Open model", help=help_text, on_click=_use, args=(outcome,))
            if outcome.download is None:
                outcome.download = Download(outcome.training)
            size = format_bytes(outcome.training.nbytes)
            st.link_button(
                "Download model",
                outcome.download.address,
                icon=":material/download:",
                help=f"The model folder as a ZIP file, about {size}, created when you click.",
            )


def _write(outcome: TrainingOutcome, folder: str, is_replacing: bool) -> None:
    """Save the model, and rerun the page, because the settings state whether the model was saved."""
    try:
        if not folder:
            raise ExportError(
                "The field for the folder is empty. Enter a path, such as the path shown in gray."
            )
        outcome.folder = str(outcome.training.save_model(folder, is_replacing).absolute())
    except ProbeError as error:
        st.error(state.escape(str(error), 600))
    else:
        st.rerun()


def _open_text(outcome: TrainingOutcome, text: str, pair: str | None) -> None:
    """Submit the trained model and a text to the workbench."""
    request = replace(workbench.request(), a=text, b=pair or "")
    _open(outcome, replace(request, relation="pair") if pair else request)


def _use(outcome: TrainingOutcome) -> None:
    """Submit the trained model and the current text to the workbench."""
    _open(outcome, workbench.request())


def _open(outcome: TrainingOutcome, request: workbench.Request) -> None:
    model = _model_name(outcome)
    model_choice.agree([(model, "")])
    workbench.submit(replace(request, model=model, revision=""))
    st.session_state["task"] = outcome.training.task
    state.leave_for("answer")


def _model_name(outcome: TrainingOutcome) -> str:
    """Return the folder of the trained model, or the name under which it is registered in memory."""
    if not outcome.folder:
        training = outcome.training
        outcome.lent = shared_cache.register_in_memory(
            training.checkpoint, outcome.lent, str(training.provenance["model"])
        )
    return outcome.folder or outcome.lent
