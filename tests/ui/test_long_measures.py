"""Test pages with a slow measure: it runs as a job, can be canceled, and its result is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from streamlit.testing.v1 import AppTest

import bert_probe
from bert_probe.analyses.attention.measures import value_zeroing as module
from bert_probe.analyses.attention.measures.value_zeroing import value_zeroing
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace
from bert_probe.runtime import shared_cache
from bert_probe.server import sessions
from bert_probe.ui import jobs
from bert_probe.views import head_view
from bert_probe.views.head_view import HeadViewData
from tests.helpers.exactness import assert_repeatable
from tests.helpers.opening import open_minilm
from tests.helpers.pages import change_url, displayed_view, error_text, open_page, page_text
from tests.helpers.server import answer
from tests.helpers.waiting import wait_until
from tests.helpers.work import Steps, all_jobs_ended

DRAWN = "value-zeroing"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Replace value zeroing by a function that reports 0 to 3 of 3 steps; the test controls each step."""
    work = Steps(3)

    def slowly(trace: Trace, layer: int, progress: Progress) -> Array:
        work(progress)
        return value_zeroing(trace, layer)

    monkeypatch.setattr(module, "value_zeroing", slowly)
    monkeypatch.setattr(jobs, "PATIENCE", 0.02)
    yield work
    work.step(100)
    wait_until(all_jobs_ended)


def labels(app: AppTest) -> list[str]:
    return [button.label for button in app.button]


def button(app: AppTest, label: str) -> AppTest:
    return next(element for element in app.button if element.label == label).click().run()


def finished(app: AppTest, work: Steps, times: int = 1) -> AppTest:
    work.step(times * (work.total + 1))
    wait_until(lambda: "Cancel" not in labels(app.run()))
    assert not app.exception
    return app


def is_drawn(app: AppTest, view: str) -> bool:
    """Return whether the view shows attention weights, as a table or a picture."""
    pictures = [element.proto.component_name for element in app.get("bidi_component")]
    return bool(app.dataframe) if view == "table" else pictures not in ([], ["bert_probe.toolbar"])


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("view", ["heads", "heatmap", "table"])
def test_long_measure_runs_as_job_and_is_drawn_when_done(view: str, steps: Steps) -> None:
    text = f"what a {view} waits for"
    app = open_page(a=text, drawn=DRAWN, show=view, layer="3")
    steps.step()
    wait_until(lambda: steps.done == 1)
    app.run()
    assert "Cancel" in labels(app)
    bar = app.get("progress")[0].proto
    assert (bar.value, bar.text) == (33, "1 of 3 layer passes")
    assert not is_drawn(app, view)
    assert displayed_view(app).layer == 3
    finished(app, steps)
    assert is_drawn(app, view)
    assert not app.get("progress")
    app.run()
    assert steps.begun == 1


def test_table_matches_library_and_options_recompute_nothing(steps: Steps) -> None:
    text = "tokenization of lengthy words"
    app = finished(open_page(a=text, drawn=DRAWN, show="table", layer="3"), steps)
    trace = open_minilm().trace(text)
    weights = value_zeroing(trace, 2)
    assert_repeatable(app.dataframe[0].value.iloc[:, 1:], weights)
    steps.step(100)  # so that the reference computation below does not wait
    for parameter, choice in (({"words": "1"}, {}), ({"specials": "0"}, {"specials": False})):
        change_url(app, **parameter)
        expected = bert_probe.Attention(2, measure=DRAWN, words=True, **choice).of(trace).weights
        assert_repeatable(app.dataframe[0].value.iloc[:, 1:], expected)
    assert steps.begun == 1 + 1, "the reference computation"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("view", ["heads", "table"])
def test_canceled_measure_keeps_page_and_can_be_restarted(view: str, steps: Steps) -> None:
    app = open_page(a=f"given up in the {view}", drawn=DRAWN, show=view, layer="3")
    steps.step()
    wait_until(lambda: steps.done == 1)
    button(app, "Cancel")
    app.run()
    assert "Cancelled after 1 of 3 layer passes. No result was saved." in page_text(app)
    steps.step()
    assert steps.ended.wait(20)
    button(app, "Compute value zeroing")
    assert is_drawn(finished(app, steps), view)
    assert steps.begun == 2


def test_other_layer_cancels_previous_job(steps: Steps) -> None:
    app = open_page(a="one layer, then another", drawn=DRAWN, layer="3")
    wait_until(lambda: steps.begun == 1)
    change_url(app, layer="2")
    steps.step()
    wait_until(lambda: steps.begun == 2)
    assert app.query_params["layer"] == "2"
    assert is_drawn(finished(app, steps), "heads")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("view", ["heads", "table"])
def test_download_of_all_layers_appears_when_all_are_computed(view: str, steps: Steps) -> None:
    app = finished(open_page(a=f"all layers of the {view}", drawn=DRAWN, show=view), steps)
    last = {"heads": "Interactive page (HTML)", "table": "All layers and heads (CSV, long format)"}[view]

    def downloads() -> list[str]:
        return [element.proto.label for element in app.get("download_button")]

    assert last not in downloads()
    button(app, "Compute all layers first")
    finished(app, steps, times=5)
    assert last in downloads()
    assert steps.begun == 6


def test_too_long_text_is_refused_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 5)
    for view in ("heads", "heatmap"):
        app = open_page(a=f"more tokens than the {view} may have", drawn=DRAWN, show=view)
        assert "accepts at most 5" in error_text(app)
        assert "Cancel" not in labels(app)


def test_layer_is_sent_to_browser_when_computed(minilm: Checkpoint) -> None:
    picture = HeadViewData(minilm.trace("we left"), measure=DRAWN)
    link = sessions.LayerLink(picture)
    status, headers, body = answer(f"{link.address}3")
    assert (status, headers["cache-control"], body) == (204, "no-store", b"")
    bert_probe.Attention(2, measure=DRAWN).of(picture.trace)
    status, _, body = answer(f"{link.address}3")
    assert (status, body) == (200, head_view.payload(picture, 2, key=""))
    assert answer(f"{link.address}4")[0] == 204


@pytest.mark.parametrize("measure", ["weights", "value-norm", "rollout"])
def test_fast_measure_starts_no_job(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    original: Callable[..., object] = jobs.run

    def run(key: str, *args: object, **more: object) -> object:
        started.append(key)
        return original(key, *args, **more)

    monkeypatch.setattr(jobs, "run", run)
    shared_cache.open_checkpoint("", "")
    for view in ("heads", "heatmap"):
        assert not open_page(a="at once", drawn=measure, show=view).exception
    assert not [key for key in started if str(key).startswith("measure")]
