"""Test that reports with duplicate keys or files, or files without a name, are refused."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path

import pytest

from bert_probe.errors import ReportError
from bert_probe.reports import reading

STATED = '<script type="application/json" id="stated">{"title": "a", "title": "b"}</script>'


def zipped(*files: tuple[str, str]) -> bytes:
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as archive:
        warnings.simplefilter("ignore")
        for name, text in files:
            archive.writestr(zipfile.ZipInfo(name), text)
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            STATED.encode(),
            'The data of report cannot be read: its JSON is invalid (the key "title" occurs twice; '
            "write the key once).",
        ),
        (
            zipped(("manifest.json", '{"files": {}}'), ("report.html", "a"), ("report.html", "b")),
            "report is a ZIP file that cannot be read: it contains two files named 'report.html'. Choose "
            "another file.",
        ),
        (
            zipped(("manifest.json", '{"files": {}}'), ("report.html", "a"), ("", "b")),
            "report is a ZIP file that cannot be read: it contains a file without a name. Choose another "
            "file.",
        ),
    ],
)
def test_ambiguous_report_is_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "report"
    file.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        reading.read_report(file)
    assert str(caught.value) == sentence
