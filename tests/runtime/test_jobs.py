"""Test jobs: progress, results, cancellation, and limited concurrency."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from bert_probe.errors import OutOfMemoryError, StalledError
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime import jobs, permissions
from bert_probe.runtime.cache import Cache
from bert_probe.runtime.jobs import Job
from tests.helpers.waiting import wait_until
from tests.helpers.work import Steps, all_jobs_ended


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(jobs, "CHECK_INTERVAL", 0.02)
    yield
    wait_until(all_jobs_ended)


def progressed(job: Job[str], progress: tuple[int, int]) -> bool:
    return job.progress == progress


def test_job_reports_progress_and_returns_its_result() -> None:
    work = Steps(3)
    job = Job("cause", work)
    wait_until(lambda: job.progress == (0, 3))
    assert (job.state, job.over) == ("running", False)
    with pytest.raises(TimeoutError, match=r"The job was not done within 0\.01 seconds"):
        job.value(0.01)
    work.step(4)
    assert job.value(20) == job.value() == "result"
    assert (job.state, job.over, job.progress) == ("done", True, (3, 3))


def test_none_is_a_valid_result() -> None:
    assert Job("cause", lambda _: None).value(20) is None


def test_canceled_job_stops_at_next_report_without_result() -> None:
    work = Steps(3)
    job = Job("cause", work)
    wait_until(lambda: job.progress)
    job.cancel()
    assert (job.state, job.over) == ("cancelled", True), "callers need not wait for the thread"
    work.step()
    assert work.ended.wait(20)
    assert work.done == 1
    with pytest.raises(Cancelled):
        job.value()


def test_result_after_cancellation_is_ignored() -> None:
    go = threading.Event()
    job = Job("cause", lambda _: go.wait(20))
    wait_until(lambda: job.state == "running")
    job.cancel()
    go.set()
    wait_until(all_jobs_ended)
    assert job.state == "cancelled"
    with pytest.raises(Cancelled):
        job.value()


def test_value_raises_the_error_of_the_work() -> None:
    def fails(_: Progress) -> str:
        raise OutOfMemoryError("The machine is too small.")

    job = Job("cause", fails)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError, match="too small"):
            job.value(20)
    assert (job.state, job.error) == ("failed", job.error)
    assert isinstance(job.error, OutOfMemoryError)


def test_job_without_owner_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    now, is_alive = [0.0], [True]
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    work = Steps(100)
    job = Job("cause", work, lambda: is_alive[0])
    wait_until(lambda: job.progress == (0, 100))
    is_alive[0] = False
    for done, seconds in ((1, jobs.GRACE), (2, jobs.GRACE / 2)):
        now[0] += seconds
        work.step()
        # the job continues for some time, because the browser may reconnect
        wait_until(partial(progressed, job, (done, 100)))
        is_alive[0] = not is_alive[0]
    assert not is_alive[0]
    now[0] += jobs.GRACE + 1
    work.step()
    assert job.wait(20)
    assert job.state == "cancelled"


def test_concurrency_is_limited_and_waiting_jobs_can_be_cancelled() -> None:
    works = [Steps(1) for _ in range(jobs.AT_ONCE + 2)]
    started = [Job("cause", work) for work in works[: jobs.AT_ONCE]]
    wait_until(lambda: all(job.state == "running" for job in started))
    looks = [0, 0]

    def looked(which: int) -> bool:
        looks[which] += 1
        return True

    third = Job("cause", works[-2], lambda: looked(0))
    fourth = Job("cause", works[-1], lambda: looked(1))
    wait_until(lambda: min(looks) > 2)
    assert (third.state, fourth.state) == ("waiting", "waiting")
    fourth.cancel()
    for work in works:
        work.step(2)
    assert [job.value(20) for job in (*started, third)] == ["result"] * (jobs.AT_ONCE + 1)
    wait_until(all_jobs_ended)
    assert fourth.state == "cancelled"
    assert works[-1].begun == 0


def test_jobs_of_one_client_leave_a_slot_for_other_clients() -> None:
    with permissions.using(permissions.public()):
        works = [Steps(1) for _ in range(4)]
        first, second = (Job("cause", work, client="192.0.2.1") for work in works[:2])
        wait_until(lambda: first.state == "running" or second.state == "running")
        other = Job("cause", works[2], client="192.0.2.2")
        wait_until(lambda: other.state == "running")
        assert sorted((first.state, second.state)) == ["running", "waiting"]
        third = Job("cause", works[3], client="192.0.2.2")
        for work in works:
            work.step(2)
        assert [job.value(20) for job in (first, second, other, third)] == ["result"] * 4
        wait_until(all_jobs_ended)
    assert not jobs._client_slots


def test_error_of_a_job_does_not_keep_local_variables() -> None:
    tables: list[weakref.ref[Table]] = []

    def build(_progress: Progress) -> None:
        table = Table()
        tables.append(weakref.ref(table))
        try:
            raise ValueError("The table is too large.")
        except ValueError as error:
            raise StalledError("The table is too large.") from error

    job = Job("cause", build)
    assert job.wait(20)
    wait_until(all_jobs_ended)
    with pytest.raises(StalledError, match="too large"):
        job.value()
    gc.disable()
    try:
        assert tables[0]() is None
    finally:
        gc.enable()


class Table:
    """An object whose memory is released when the function that has it as a local variable is released."""


@pytest.mark.parametrize("run", [jobs.ThreadPool("test").call, partial(Cache[str, None](10).once, "table")])
def test_errors_in_threads_and_caches_do_not_keep_local_variables(
    run: Callable[[Callable[[], None]], None],
) -> None:
    tables: list[weakref.ref[Table]] = []

    def build() -> None:
        table = Table()
        tables.append(weakref.ref(table))
        raise ValueError("The table is too large.")

    gc.disable()
    try:
        with suppress(ValueError):
            run(build)
        wait_until(lambda: tables[0]() is None)
    finally:
        gc.enable()


def test_error_that_is_raised_again_does_not_keep_local_variables_of_callers() -> None:
    def fail(_progress: Progress) -> None:
        raise ValueError("The table is too large.")

    job = Job("cause", fail)
    tables: list[weakref.ref[Table]] = []

    def call() -> None:
        table = Table()
        tables.append(weakref.ref(table))
        job.value(20)

    gc.disable()
    try:
        for _ in range(3):
            with suppress(ValueError):
                call()
        assert [table() is None for table in tables] == [True, True, False], (
            "only the last call is referred to"
        )
    finally:
        gc.enable()


def test_cancelled_job_does_not_keep_local_variables() -> None:
    tables: list[weakref.ref[Table]] = []
    begun, go_on = threading.Event(), threading.Event()

    def build(progress: Progress) -> None:
        table = Table()
        tables.append(weakref.ref(table))
        begun.set()
        assert go_on.wait(20)
        try:
            progress(1, 2)
        except Cancelled as error:
            errors = [error]  # the error refers to this frame, which refers to the error
            raise errors[0] from None

    gc.disable()
    try:
        job = Job("cause", build)
        assert begun.wait(20)
        job.cancel()
        go_on.set()
        wait_until(lambda: tables[0]() is None)
    finally:
        gc.enable()


def test_jobs_and_progress_bars_do_not_import_streamlit() -> None:
    modules = "bert_probe.runtime.jobs, bert_probe.runtime.terminal"
    code = f"import sys, {modules}; sys.exit('streamlit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unqueued_job_needs_no_slot() -> None:
    works = [Steps(1) for _ in range(jobs.AT_ONCE)]
    busy = [Job("cause", work) for work in works]
    wait_until(lambda: all(work.begun for work in works))
    assert Job("cause", lambda _: "at once", queued=False).value(20) == "at once"
    for job, work in zip(busy, works, strict=True):
        work.step(3)
        assert job.value(20) == "result"


def test_silent_job_fails_and_its_result_is_ignored() -> None:
    work = Steps(1)
    job = Job("cause", work, silence=0.05)
    wait_until(lambda: job.wait(0.01))
    assert job.state == "failed"
    with pytest.raises(StalledError, match="The job made no progress for 0 seconds"):
        job.value()
    work.step(3)
    assert work.ended.wait(20)
    assert job.state == "failed"


def test_repeated_report_counts_as_silence() -> None:
    def stuck(progress: Progress) -> None:
        while True:
            progress(1, 3)
            threading.Event().wait(0.005)

    job = Job("cause", stuck, silence=0.1)
    wait_until(lambda: job.wait(0.01))
    assert isinstance(job.error, StalledError)


LEFT = """
import time
from bert_probe.runtime.jobs import Job
from bert_probe.model.progress import Cancelled

def work(report):
    try:
        while True:
            report(0, 0)
            time.sleep(0.01)
    except Cancelled:
        print("ended")
        raise

job = Job("cause", work)
"""


def test_running_jobs_are_cancelled_at_exit() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
