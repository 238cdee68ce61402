"""Work behind a page: started once, stopped at its next report, shown to its own session alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.errors import OutOfMemoryError
from bert_probe.run import jobs
from bert_probe.run.jobs import Job


class Steps:
    """Work that reports and then waits for the test, step by step."""

    def __init__(self, total: int = 3) -> None:
        self.total, self.done = total, 0
        self.ended = threading.Event()
        self._go = threading.Semaphore(0)

    def __call__(self, report: jobs.Report) -> str:
        try:
            for done in range(self.total + 1):
                self.done = done
                report(done, self.total)
                self._go.acquire(timeout=20)
            return "result"
        finally:
            self.ended.set()

    def step(self, count: int = 1) -> None:
        self._go.release(count)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(jobs, "PATIENCE", 0.02)
    before = threading.active_count()
    yield
    until(lambda: threading.active_count() <= before)


def job(work: Callable[[jobs.Report], Any], alive: Callable[[], bool] = lambda: True) -> Job:
    return Job("cause", work, alive)


def test_a_job_reports_and_brings_its_result() -> None:
    work = Steps(3)
    one = job(work)
    until(lambda: one.progress == (0, 3))
    assert (one.state, one.over) == ("running", False)
    work.step(4)
    assert one.wait(20)
    assert (one.state, one.result, one.progress) == ("done", "result", (3, 3))


def test_a_cancelled_job_stops_at_its_next_report_and_its_result_is_dropped() -> None:
    work = Steps(3)
    one = job(work)
    until(lambda: one.progress)
    one.cancel()
    assert (one.state, one.over) == ("cancelled", True), "the page need not wait for the thread"
    work.step()
    assert work.ended.wait(20)
    assert work.done == 1
    assert (one.state, one.result) == ("cancelled", None)


def test_what_comes_after_the_cancelling_is_not_kept() -> None:
    go = threading.Event()
    one = job(lambda _: go.wait(20))
    until(lambda: one.state == "running")
    one.cancel()
    go.set()
    time.sleep(0.05)
    assert (one.state, one.result) == ("cancelled", None)


def test_a_job_ends_when_its_session_is_gone_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GRACE", 0.1)
    there = [True]
    work = Steps(100)
    one = job(work, lambda: there[0])
    until(lambda: one.progress)
    there[0] = False
    work.step()
    until(lambda: one.progress == (1, 100))  # a connection may come back
    time.sleep(0.2)
    work.step()
    assert one.wait(20)
    assert one.state == "cancelled"


def test_no_more_than_a_few_compute_at_once_and_a_waiting_one_can_be_cancelled() -> None:
    works = [Steps(1) for _ in range(jobs.AT_ONCE + 2)]
    started = [job(work) for work in works[: jobs.AT_ONCE]]
    until(lambda: all(one.state == "running" for one in started))
    third, fourth = (job(work) for work in works[jobs.AT_ONCE :])
    time.sleep(0.1)
    assert (third.state, fourth.state) == ("waiting", "waiting")
    fourth.cancel()
    for work in works:
        work.step(2)
    assert all(one.wait(20) for one in (*started, third))
    assert third.state == "done"
    until(lambda: fourth.state == "cancelled")
    assert not works[-1].ended.is_set(), "it never began"


PAGE = """
import streamlit as st
from bert_probe.errors import ProbeError
from bert_probe.run import jobs

for name, (cause, work) in st.session_state["wanted"].items():
    try:
        st.write(name, jobs.run(name, cause, f"Start {name}", work, "heads", "Some seconds"))
    except ProbeError as error:
        st.write(str(error))
"""


def page(**wanted: tuple[object, Callable[[jobs.Report], Any]]) -> AppTest:
    app = AppTest.from_string(PAGE, default_timeout=20)
    app.session_state["wanted"] = wanted
    return app.run()


def click(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


def labels(app: AppTest) -> list[str]:
    return [button.label for button in app.button]


def said(app: AppTest) -> str:
    return " ".join(element.value for part in (app.markdown, app.caption) for element in part)


def finished(app: AppTest, work: Steps) -> AppTest:
    work.step(work.total + 1)
    assert work.ended.wait(20)
    time.sleep(0.05)
    return app.run()


def test_a_page_starts_watches_and_shows() -> None:
    work = Steps(3)
    app = page(one=("text", work))
    assert labels(app) == ["Start one"]
    assert "Some seconds" in said(app)
    click(app, "Start one")
    work.step()
    until(lambda: work.done == 1)
    app.run()
    assert labels(app) == ["Cancel"]
    bar = app.get("progress")[0].proto
    assert (bar.value, bar.text) == (33, "1 of 3 heads")
    finished(app, work)
    assert labels(app) == []
    assert "result" in said(app)
    app.run()
    assert "result" in said(app)


def test_short_work_is_never_seen_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE", 5.0)
    app = click(page(one=("text", lambda _: "at once")), "Start one")
    assert labels(app) == []
    assert "at once" in said(app)


def test_a_cancelled_one_says_so_and_can_be_started_again() -> None:
    work = Steps(3)
    app = click(page(one=("text", work)), "Start one")
    until(lambda: work.done == 0)
    click(app, "Cancel")
    assert "Cancelled" in said(app)
    assert labels(app) == ["Start one"]
    work.step()
    assert work.ended.wait(20)
    again = Steps(1)
    app.session_state["wanted"] = {"one": ("text", again)}
    click(app, "Start one")
    assert "result" in said(finished(app, again))


def test_another_cause_gives_up_the_work_and_drops_the_result() -> None:
    work, other = Steps(3), Steps(0)
    app = click(page(one=("text", work)), "Start one")
    app.session_state["wanted"] = {"one": ("other text", other)}
    app.run()
    assert labels(app) == ["Start one"]
    work.step()
    assert work.ended.wait(20)
    assert work.done <= 1
    click(app, "Start one")
    assert "result" in said(finished(app, other))
    app.session_state["wanted"] = {"one": ("text", other)}
    assert "result" not in said(app.run())


def test_an_error_comes_out_on_the_page_until_it_is_tried_again() -> None:
    def fails(_: jobs.Report) -> str:
        raise OutOfMemoryError("The machine is too small.")

    app = click(page(one=("text", fails)), "Start one")
    until(lambda: "too small" in said(app.run()))
    assert labels(app) == ["Start one"]
    works = Steps(0)
    app.session_state["wanted"] = {"one": ("text", works)}
    click(app, "Start one")
    assert "result" in said(finished(app, works))


def test_sessions_share_nothing() -> None:
    work = Steps(0)
    one, other = page(one=("text", work)), page(one=("text", Steps(0)))
    click(one, "Start one")
    assert "result" in said(finished(one, work))
    assert "result" not in said(other.run())
    assert labels(other) == ["Start one"]


def test_a_session_holds_a_bounded_number() -> None:
    works = {f"job{i}": ("text", Steps(0)) for i in range(jobs.KEPT + 1)}
    app = page()
    for name, wanted in works.items():
        app.session_state["wanted"] = {name: wanted}
        app.run()
        click(app, f"Start {name}")
        finished(app, wanted[1])
    assert list(app.session_state["jobs"]) == [f"job{i}" for i in range(1, jobs.KEPT + 1)]
