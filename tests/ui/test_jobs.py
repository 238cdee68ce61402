"""Test jobs of a page: they start once, show progress, can be canceled, and belong to their session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.errors import OutOfMemoryError, TextError
from bert_probe.model.progress import Progress
from bert_probe.ui import jobs
from tests.helpers.waiting import wait_until
from tests.helpers.work import Steps, all_jobs_ended

PAGE = """
import streamlit as st
from bert_probe.errors import ProbeError
from bert_probe.ui import jobs

for name, (cause, work) in st.session_state["wanted"].items():
    try:
        start = name.startswith("auto")
        st.write(name, jobs.run(name, cause, f"Start {name}", work, "heads", "Some seconds", start=start))
    except ProbeError as error:
        st.write(str(error))
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(jobs, "PATIENCE", 0.02)
    yield
    wait_until(all_jobs_ended)


def page(**works: tuple[object, Callable[[Progress], Any]]) -> AppTest:
    app = AppTest.from_string(PAGE, default_timeout=20)
    app.session_state["wanted"] = works
    return app.run()


def click(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def labels(app: AppTest) -> list[str]:
    return [button.label for button in app.button]


def page_text(app: AppTest) -> str:
    return " ".join(element.value for part in (app.markdown, app.caption) for element in part)


def finished(app: AppTest, work: Steps) -> AppTest:
    work.step(work.total + 1)
    assert work.ended.wait(20)
    wait_until(lambda: "Cancel" not in labels(app.run()))
    return app


def test_page_starts_job_and_shows_progress_and_result() -> None:
    work = Steps(3)
    app = page(one=("text", work))
    assert labels(app) == ["Start one"]
    assert "Some seconds" in page_text(app)
    click(app, "Start one")
    work.step()
    wait_until(lambda: work.done == 1)
    app.run()
    assert labels(app) == ["Cancel"]
    bar = app.get("progress")[0].proto
    assert (bar.value, bar.text) == (33, "1 of 3 heads")
    finished(app, work)
    assert labels(app) == []
    assert "result" in page_text(app)
    app.run()
    assert "result" in page_text(app)
    assert work.begun == 1


@dataclass(frozen=True)
class SizedResult:
    """A result with a size in bytes, like the library's results."""

    text: str
    nbytes: int = 1


@dataclass(frozen=True)
class SlowQuestion:
    """A question that takes a while."""

    name: str
    of_whom: ClassVar[list[tuple[str, str, int]]] = []

    def of(self, subject: str, limit: int, progress: Progress) -> SizedResult:
        self.of_whom.append((self.name, subject, limit))
        progress(1, 1)
        return SizedResult(f"{self.name} of {subject}")


ASKING = """
import streamlit as st
from bert_probe.ui import jobs

question, subject, limit = st.session_state["asked"]
result = jobs.answer("slow", question.of, subject, label="Ask", start=True, limits=(limit,))
st.write("nothing yet" if result is None else result.text)
"""


def test_result_is_shared_between_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 20.0)
    monkeypatch.setattr(SlowQuestion, "of_whom", [])

    def answer(*arguments: object) -> str:
        app = AppTest.from_string(ASKING, default_timeout=20)
        app.session_state["asked"] = arguments
        app.run()
        job = app.session_state["jobs"]["slow"]
        app.session_state["asked"] = (SlowQuestion(arguments[0].name), *arguments[1:])  # type: ignore[attr-defined]
        app.run()
        assert app.session_state["jobs"]["slow"] is job, "an equal question does not restart the job"
        return page_text(app)

    assert answer(SlowQuestion("size"), "a", 1) == "size of a"
    assert answer(SlowQuestion("size"), "a", 1) == "size of a", "another session"
    assert answer(SlowQuestion("size"), "b", 1) == "size of b"
    assert answer(SlowQuestion("colour"), "b", 1) == "colour of b"
    assert SlowQuestion.of_whom == [("size", "a", 1), ("size", "b", 1), ("colour", "b", 1)]


def test_short_job_shows_result_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 20.0)
    app = click(page(one=("text", lambda _: "at once")), "Start one")
    assert labels(app) == []
    assert "at once" in page_text(app)
    app = page(auto=("text", lambda _: "without a button"))
    assert labels(app) == []
    assert "without a button" in page_text(app)


@pytest.mark.parametrize("name", ["one", "auto"])
def test_canceled_job_is_reported_and_can_be_restarted(name: str) -> None:
    work, again = Steps(3), Steps(1)
    app = page(**{name: ("text", work)})
    if name == "one":
        click(app, "Start one")
    wait_until(lambda: work.begun)
    click(app, "Cancel")
    assert "Cancelled" in page_text(app)
    app.session_state["wanted"] = {name: ("text", again)}
    app.run()
    assert labels(app) == [f"Start {name}"], "a canceled job is not restarted automatically"
    work.step()
    assert work.ended.wait(20)
    click(app, f"Start {name}")
    assert "result" in page_text(finished(app, again))
    assert (work.begun, again.begun) == (1, 1)


def test_changed_inputs_cancel_job_and_drop_result() -> None:
    work, other = Steps(3), Steps(0)
    app = click(page(one=("text", work)), "Start one")
    app.session_state["wanted"] = {"one": ("other text", other)}
    app.run()
    assert labels(app) == ["Start one"]
    work.step()
    assert work.ended.wait(20)
    assert work.done <= 1
    click(app, "Start one")
    assert "result" in page_text(finished(app, other))
    app.session_state["wanted"] = {"one": ("text", other)}
    assert "result" not in page_text(app.run())


def test_automatic_job_restarts_with_changed_inputs() -> None:
    work, other = Steps(3), Steps(0)
    app = page(auto=("text", work))
    wait_until(lambda: work.begun)
    app.session_state["wanted"] = {"auto": ("other text", other)}
    app.run()
    work.step()
    assert work.ended.wait(20)
    assert work.done <= 1
    assert "result" in page_text(finished(app, other))
    assert labels(app) == []


@pytest.mark.parametrize("name", ["one", "auto"])
def test_error_is_shown_until_retry(name: str) -> None:
    def fails(_: Progress) -> str:
        raise OutOfMemoryError("The machine is too small.")

    app = page(**{name: ("text", fails)})
    if name == "one":
        click(app, "Start one")
    wait_until(lambda: "too small" in page_text(app.run()))
    assert labels(app) == [f"Start {name}"]
    works = Steps(0)
    app.session_state["wanted"] = {name: ("text", works)}
    click(app, f"Start {name}")
    assert "result" in page_text(finished(app, works))


def test_automatic_job_is_not_retried_after_text_error() -> None:
    tried = []

    def fails(_: Progress) -> str:
        tried.append("text")
        raise TextError("Sentence 2 is too long.")

    app = page(auto=("text", fails))
    for _ in range(2):
        wait_until(lambda: "too long" in page_text(app.run()))
        assert labels(app) == []
    assert tried == ["text"]


def test_jobs_of_sessions_are_isolated() -> None:
    work = Steps(0)
    first, other = page(one=("text", work)), page(one=("text", Steps(0)))
    click(first, "Start one")
    assert "result" in page_text(finished(first, work))
    assert "result" not in page_text(other.run())
    assert labels(other) == ["Start one"]


def test_number_of_jobs_per_session_is_bounded() -> None:
    works = {f"job{i}": ("text", Steps(0)) for i in range(jobs.MAX_JOBS + 1)}
    app = page()
    for name, work in works.items():
        app.session_state["wanted"] = {name: work}
        app.run()
        click(app, f"Start {name}")
        finished(app, work[1])
    assert list(app.session_state["jobs"]) == [f"job{i}" for i in range(1, jobs.MAX_JOBS + 1)]
