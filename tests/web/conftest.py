"""Set-up of the pages' tests."""

import pytest

from bert_probe.web import jobs, workbench


@pytest.fixture(autouse=True)
def pages_wait_for_what_they_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: one run of a page's script shows its result."""
    monkeypatch.setattr(jobs, "PATIENCE", 100.0)
    monkeypatch.setattr(workbench, "PATIENCE", 100.0)
