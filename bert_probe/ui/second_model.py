"""Widgets to choose, open or fine-tune model B, the second model, and to swap it with model A."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions, shared_cache
from bert_probe.text.datasets import everyday_topics
from bert_probe.ui import blocks, jobs, model_choice, selection_state, state, view_files, workbench

if TYPE_CHECKING:
    from bert_probe.training.training_result import TrainingResult

_MODEL, _REVISION = "other", "other_revision"
"""URL parameters and widget keys of the name and the revision of model B."""
_LAST = "second model named"
"""Session key of the model that the text fields contained in the last script run."""
_SWAP: Final = "last swap"
"""Session key of the last `_Swap`."""
_SWAP_SECONDS: Final = 5.0
"""Number of seconds in which a second click swaps back, if the browser had not received the new models."""
_EXAMPLES, _NEXT = "fine-tuned examples", "next second model"
"""Session keys of the fine-tuned examples (a dict by model name) and of the model to select as B next."""
_LAYERS: Final = 2
"""Number of last layers that fine-tuning the example updates."""
_EPOCHS: Final = 2
_LEARNING_RATE: Final = 2e-4
"""Learning rate of the fine-tuned example, high enough that a few steps visibly change the model."""


@dataclass(frozen=True, eq=False)
class FineTunedExample:
    """A copy of model A that was fine-tuned on sample sentences.

    Attributes:
        original: display name of the original model.
    """

    original: str
    training: TrainingResult

    def __str__(self) -> str:
        training, best = self.training, self.training.best
        return (
            f"Model B is a copy of {self.original} whose last layers and new classification head were "
            f"fine-tuned on {len(training.data.rows):,} sample sentences about six topics "
            f"({best.epoch:g} epochs, seed 0). {training.measure.capitalize()} on "
            f"{len(training.held_out.rows):,} held-out sentences: {best.measure:.0%}. Model B is in "
            "memory only. Training on other data would give different changes."
        )


class SecondModel(NamedTuple):
    """Name and revision of model B."""

    model: str
    revision: str


def choose(can_swap: bool = True) -> SecondModel | None:
    """Draw the fields for model B and return the model, or None if the field is empty.

    Args:
        can_swap: whether to draw a button that swaps B with model A, the model of the workbench.
    """
    if _NEXT in st.session_state:
        st.session_state[_MODEL], st.session_state[_REVISION] = st.session_state.pop(_NEXT), ""
    models = permissions.current().models
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        if models:
            with st.container(width=460):
                options = {"": "Choose a model", **{name: name for name in models}}
                state.selectbox(_MODEL, "Second model, B", options, "", show_label=True)
            st.session_state[_REVISION] = ""
        else:
            _name_fields()
        second = st.session_state[_LAST] = _current()
        if second and can_swap:
            st.button("Swap A and B", on_click=swap)
    if second and second.model in _examples():
        blocks.caveat(state.escape(str(_examples()[second.model]), 1000))
    return second


def select(model: str) -> None:
    """Select a model as the second model. Call this function before the page calls `choose`."""
    st.session_state[_NEXT] = model
    state.remember(_MODEL, model)


def _name_fields() -> None:
    """Draw text fields for the name and the revision of model B."""
    with st.container(width=460):
        state.text_input(_MODEL, "Second model, B", "Folder or Hub ID", on_change=_on_change)
    with st.container(width=200):
        state.text_input(_REVISION, "Revision of B", "Newest", on_change=_on_change)


def _examples() -> dict[str, FineTunedExample]:
    """Return the fine-tuned examples of this session: model name → example."""
    state.preserve(_EXAMPLES)
    examples: dict[str, FineTunedExample] = st.session_state.setdefault(_EXAMPLES, {})
    return examples


def _current() -> SecondModel | None:
    """Return the model named in the fields, or None if the field is empty."""
    model, revision = (str(st.session_state[key]).strip() for key in (_MODEL, _REVISION))
    return SecondModel("" if model == BUILT_IN else model, revision) if model else None


def _on_change() -> None:
    """Record that the user agreed to open the model that was entered in the fields."""
    second = _current()
    if second is not None:
        model_choice.choose(second, st.session_state.get(_LAST) or SecondModel("", ""))


def _cancel() -> None:
    st.session_state[_MODEL] = st.session_state[_REVISION] = ""


def explain(a: Checkpoint) -> None:
    """Draw an explanation of how to choose a second model."""
    allowed = permissions.current()
    where = (
        "Choose model B above."
        if allowed.is_public
        else "Enter model B above: a folder on this machine, or a Hub ID."
    )
    with st.container(border=True, key="no_second"):
        st.header("A second model is needed", anchor=False)
        st.markdown(
            f"Model A is **{state.escape(a.description.name)}**, the model chosen in the sidebar. {where} "
            "The comparison is most complete if B was fine-tuned from A. For models of different sizes, only "
            "layers and heads with a counterpart are compared. For models with different tokenizers, only "
            "head matches are available."
        )
        if allowed.can_train:
            try:
                _fine_tune_example(a)
            except ProbeError as error:
                error_box(error, "Model A cannot be fine-tuned as an example")
        st.button(
            "Compare A with itself",
            type="tertiary",
            on_click=_compare_with_itself,
            args=(workbench.request().model or BUILT_IN,),
        )
        st.caption("If a model is compared with itself, all changes are 0.")


def _fine_tune_example(a: Checkpoint) -> None:
    """Draw a button that fine-tunes a copy of A, and select the copy as B when training is done."""
    examples = _examples()
    training = jobs.run(
        "fine-tuned example",
        # Include the number of examples in the job key, so that each click starts a new training run.
        (a.cache_key, len(examples)),
        "Fine-tune a copy of A",
        partial(_fine_tune, a),
        "steps",
        f"The last layers and a new classification head are trained on {len(everyday_topics().rows):,} "
        "sample sentences about six topics, which are included in the package. Training takes seconds for "
        "the built-in model and minutes for a large model. Model A is not changed.",
        activity="Fine-tuning the copy",
    )
    if training is None:
        return
    name = shared_cache.register_in_memory(training.checkpoint, original=a.description.name)
    examples[name] = FineTunedExample(a.description.name, training)
    st.session_state[_NEXT] = name
    st.rerun()


def _fine_tune(a: Checkpoint, progress: Progress) -> TrainingResult:
    from bert_probe.training.train import Train  # import here, because only fine-tuning needs this module

    layers = min(_LAYERS, a.description.layers)
    question = Train(update=f"top:{layers}", epochs=_EPOCHS, rate=_LEARNING_RATE, seed=0)
    return question.of(a, everyday_topics(), progress=progress)


def open_second(second: SecondModel) -> Checkpoint | None:
    """Open model B and return it. If it cannot be opened, draw an error and return None."""
    try:
        checkpoint = workbench.open_model(
            second.model,
            second.revision,
            workbench.request().dtype,
            "opening the second model",
            "The URL of this page names this model as the second model.",
            ("Cancel", _cancel),
        )
    except ProbeError as error:
        error_box(error, "The second model cannot be opened")
        return None
    view_files.compare_weights(second.model, second.revision, checkpoint, "model B")
    return checkpoint


def error_box(error: ProbeError, title: str) -> None:
    """Draw an error about the second model, with a hint to enter another model."""
    with st.container(border=True, key="refusal"):
        st.header(title, anchor=False)
        st.text(str(error))
        st.caption("Enter another second model above. Your texts and settings are kept.")


def part_title(title: str) -> DeltaGenerator:
    """Draw the title of a section; return a container to its right for the export menu."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header(title, anchor=False)
        return st.container(width="content")


def swap() -> None:
    """Swap model B with model A, the model of the workbench."""
    now = workbench.request()
    second = _current() or SecondModel("", "")
    previous: _Swap | None = st.session_state.get(_SWAP)
    if previous is not None and second == previous.before and time.monotonic() < previous.end:
        second = previous.after
    after = SecondModel(now.model, now.revision)
    st.session_state[_SWAP] = _Swap(second, after, time.monotonic() + _SWAP_SECONDS)
    workbench.submit(replace(now, model=second.model, revision=second.revision))
    st.session_state[_MODEL], st.session_state[_REVISION] = now.model or BUILT_IN, now.revision


class _Swap(NamedTuple):
    """The last swap. The browser can send another click before it has received the new model B.

    Attributes:
        before: model B before the swap, which such a request still contains.
        after: model B after the swap.
        end: time until which the browser may not have received the new model, in seconds.
    """

    before: SecondModel
    after: SecondModel
    end: float


def head_buttons(layer: int, head: int) -> None:
    """Draw two buttons that open the Attention page: one with a head of A, one with that head of B.

    Args:
        layer: layer, from 1.
        head: head, from 1.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"Show head {layer}.{head}", width="content")
        st.button("in A", on_click=_show_head, args=(layer, head))
        st.button("in B", on_click=_show_head, args=(layer, head, _current()))


def head_pair_buttons(a: tuple[int, int], b: tuple[int, int]) -> None:
    """Draw two buttons that open the Attention page: with head `a` of A, or with head `b` of B.

    Args:
        a: (layer, head) in A, counted from 1.
        b: (layer, head) in B, counted from 1.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button(f"Show head {a[0]}.{a[1]} in A", on_click=_show_head, args=a)
        st.button(f"Show head {b[0]}.{b[1]} in B", on_click=_show_head, args=(*b, _current()))


def _show_head(layer: int, head: int, other: SecondModel | None = None) -> None:
    """Show a head of A or, if `other` is given, of this model B. A second click does not swap back."""
    selection_state.show_head(layer, (head - 1,))
    now = workbench.request()
    if other is not None and other != (now.model, now.revision):
        swap()
    state.leave_for("attention")


def _compare_with_itself(name: str) -> None:
    st.session_state[_MODEL], st.session_state[_REVISION] = name, workbench.request().revision
