"""Set-up of the pages' tests."""

from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
from streamlit.components.v2 import manifest_scanner

from bert_probe.analyses.highlights import reference
from bert_probe.analyses.vectors.similarity_baseline import baseline_sentences
from bert_probe.ui import jobs, workbench


@pytest.fixture(scope="session", autouse=True)
def packages_are_searched_once() -> Iterator[None]:
    """A server asks once which of them bring components, Streamlit's test runner for each page it opens."""
    with patch.object(
        manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests)
    ):
        yield


@pytest.fixture(autouse=True)
def pages_wait_for_what_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: one run of a page's script shows its result, for a few sentences alone."""
    few = baseline_sentences()[:6]
    monkeypatch.setattr(reference, "baseline_sentences", lambda: few)
    monkeypatch.setattr(jobs, "PATIENCE", 100.0)
    monkeypatch.setattr(workbench, "PATIENCE", 100.0)
