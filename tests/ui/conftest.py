"""Fixtures of the page tests."""

from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import local_script_runner
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

from bert_probe.analyses.highlights import highlights
from bert_probe.analyses.retrieval import calibration
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.ui import jobs, workbench


@pytest.fixture(scope="session", autouse=True)
def packages_searched_once() -> Iterator[None]:
    """Search the packages for Streamlit components once per process; AppTest would search for each page."""
    with patch.object(
        manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests)
    ):
        yield


@pytest.fixture(scope="session", autouse=True)
def no_polling_of_scripts() -> Iterator[None]:
    """Wait for the thread of a script; AppTest would check the state of the script every millisecond."""
    check = local_script_runner.require_widgets_deltas

    def wait(runner: LocalScriptRunner, timeout: float) -> None:
        assert runner._script_thread is not None
        runner._script_thread.join(timeout)
        check(runner, 0.1)

    with patch.object(local_script_runner, "require_widgets_deltas", wait):
        yield


@pytest.fixture(autouse=True)
def patient_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer for results, so that one run of the script shows them even on a busy machine."""
    few = baseline_sentences()[:6]
    monkeypatch.setattr(highlights, "baseline_sentences", lambda: few)
    reference = calibration.reference_sentences()[::6]
    monkeypatch.setattr(calibration, "reference_sentences", lambda: reference)
    monkeypatch.setattr(jobs, "PATIENCE", 100.0)
    monkeypatch.setattr(workbench, "PATIENCE", 100.0)
