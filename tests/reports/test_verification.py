"""Reports: what they hold, that an unchanged one passes, and that a changed digit is found wherever it is."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress as Progress
from bert_probe.model.progress import no_progress
from bert_probe.model.trace import Trace
from bert_probe.reports import numbers, page
from bert_probe.reports.differences import (
    CHANGED,
    DIFFERS,
    NOT_RENDERED,
    OTHER_MODEL,
    OTHERWISE,
    Difference,
)
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.numbers import NamedModels, ViewNumbers, ViewTolerances
from bert_probe.reports.reading import ReportFile, read_report
from bert_probe.reports.report import Report
from bert_probe.reports.tables import Table, digest
from bert_probe.reports.tolerances import FLOOR, Tolerance, near, of_table
from bert_probe.reports.verification import verify
from bert_probe.reports.view_files import ModelReference, ViewFile
from bert_probe.views.payload import as_text, packed, unpacked
from tests.helpers.pages import HOSTILE

TEXT = "the small boat crosses the wide river"
STATING = b'<script type="application/json" id="stated">%s</script>'
NOTE = "The first head has an entropy of {{1, entropy_bits}}, of 3 heads; " + HOSTILE


@pytest.fixture(scope="module")
def models(family: Callable[[str], Checkpoint]) -> NamedModels:
    """Opens what a view names: the tests' tiny model."""
    return NamedModels(lambda _: family("bert"))


@pytest.fixture(scope="module")
def report(models: NamedModels) -> Report:
    """Five views: a heatmap, two texts, heads with a note, lines, tokens."""
    trace = models.open(ModelReference()).trace(TEXT)
    other = models.open(ModelReference()).trace(HOSTILE)
    asked = [
        bert_probe.Attention(1, 2).of(trace),
        bert_probe.Similarity(1).of(trace, other),
        bert_probe.Heads().of(trace),
        bert_probe.Attention(0).of(trace),
        bert_probe.Tokens().of(other),
    ]
    views = [ViewFile.of(one) for one in asked]
    views[3] = replace(views[3], drawn={"as": "lines", "layer": "2", "heads": "1.3", "head": "1"})
    entries = [DraftEntry(view, NOTE if number == 2 else "") for number, view in enumerate(views)]
    return Report.of(Draft(HOSTILE, tuple(entries)), models)


@pytest.fixture(scope="module")
def archive(report: Report) -> bytes:
    """The same as a ZIP."""
    return report.zip()


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str | bytes], ReportFile]:
    """A report's file as `verify` gets it."""

    def from_file(content: str | bytes) -> ReportFile:
        place = tmp_path / "a report"
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_report(place)

    return from_file


class Remembering(NamedModels):
    """Computes each view once: here other parts of a report are looked at."""

    def computed(self, view: ViewFile, report: Progress = no_progress) -> tuple[ViewNumbers, ViewTolerances]:
        key = view.to_bytes()
        if key not in _KNOWN:
            _KNOWN[key] = super().computed(view, report)
        return _KNOWN[key]


_KNOWN: dict[bytes, tuple[ViewNumbers, ViewTolerances]] = {}


Found = Callable[[str | bytes], tuple[Difference, ...]]


@pytest.fixture
def found(read: Callable[[str | bytes], ReportFile], models: NamedModels) -> Found:
    """The differences of a report."""
    remembering = Remembering(models.open, models._opened, models._twins)
    return lambda content: verify(read(content), remembering).differences


# ---------------------------------------------------------------- unchanged


def test_an_unchanged_report_passes(report: Report, archive: bytes, read: Any, models: NamedModels) -> None:
    for content in (report.html(), archive):
        verdict = verify(read(content), models)
        assert verdict.differences == ()
        assert verdict.numbers > 500
        assert verdict.remarks == (
            "View 3: these numbers of the note are its writer's own, and nobody can compute them again: "
            + ", ".join(re.findall("[0-9]+", NOTE)[1:])
            + ".",
        )


class BesideOthers(Checkpoint):
    """Reads each text in a padded batch with a longer one, so that sums are made in another order."""

    def trace(self, text: str, pair: str | None = None, truncate: bool = False) -> Trace:
        return self.traces([(text, pair), (f"{TEXT} {TEXT} {TEXT}", None)], truncate)[0]


def test_a_report_passes_where_numbers_are_added_in_another_order(
    report: Report, read: Any, models: NamedModels
) -> None:
    here = models.open(ModelReference())
    other = BesideOthers(**{field.name: getattr(here, field.name) for field in fields(Checkpoint)})
    stated = read(report.html())
    again = stated.views[0].view.answer(other).result.table().to_numpy()
    assert (again != report.items[0].numbers.result.table().to_numpy()).any(), "nothing is different here"
    elsewhere = NamedModels(lambda _: other, _twins=models._twins)
    assert verify(stated, elsewhere).differences == ()


def test_map_passes_where_numbers_are_added_in_another_order(read: Any, models: NamedModels) -> None:
    here = models.open(ModelReference())
    other = BesideOthers(**{field.name: getattr(here, field.name) for field in fields(Checkpoint)})
    view = ViewFile.of(bert_probe.TokenMap().of(here.trace(TEXT)))
    made = Report.of(Draft("", (DraftEntry(view),)), models)
    drawn, drawn_again = (
        bert_probe.TokenMap().of(checkpoint.trace(TEXT)).planes.points for checkpoint in (here, other)
    )
    assert (drawn != drawn_again).any(), "nothing is different here"
    verdict = verify(read(made.zip()), NamedModels(lambda _: other, _twins=models._twins))
    assert verdict.differences == ()


def test_the_tolerance_is_worked_out_from_the_models_own_error(report: Report, models: NamedModels) -> None:
    item = report.items[0]
    (bound,) = item.bounds.table
    (double,) = models.twins(item.entry.view)
    exact = item.entry.view.answer(double).result.table()
    assert exact.to_numpy().dtype == np.float64
    error = np.abs(item.numbers.result.table().to_numpy() - exact.to_numpy()).max()
    assert (
        0 < bound.error == pytest.approx(error, rel=1e-2)
    )  # the report holds float32 in its shortest digits
    assert bound.allowed == max(8 * bound.error, FLOOR * bound.largest)
    assert f"{bound.allowed:.2e}" in report.html()


def test_two_numbers_are_near_or_not() -> None:
    assert near(1.0, 1.1, 0.2)
    assert not near(1.0, 1.3, 0.2)
    assert near(None, None, 0)
    assert not near(None, 1.0, 9)
    assert near(float("inf"), float("inf"), 0)
    assert not near(float("inf"), 1.0, 9)
    assert not near("1", 1.0, 9)


def test_rows_that_change_places_are_matched() -> None:
    one = Table.of(pd.DataFrame({"head": [1, 2, 3], "weight": np.float32([0.5, 0.4, 0.1])}))
    other = Table.of(pd.DataFrame({"head": [2, 1, 3], "weight": [0.4000001, 0.5, 0.1]}))
    (bound,) = of_table(one, other)
    assert bound == Tolerance("weight", 0.5, pytest.approx(1e-7, rel=0.01))


# ---------------------------------------------------------------- changed


def restated(report: Report) -> dict[str, Any]:
    """What the report states, to be changed."""
    held: dict[str, Any] = json.loads(json.dumps(report.stated))
    return held


def resigned(stated: dict[str, Any], number: int) -> str:
    """The page of a changed report, with its digests and marks made anew: as of somebody who knows how."""
    view = stated["views"][number - 1]
    view["sha256"] = {name: digest(view[name]) for name in view["sha256"] if name != "payloads"} | {
        "payloads": view["sha256"]["payloads"]
    }
    view["marks"] = Table.from_json(view["table"]).marks()
    return page.written(stated)


def unsigned(stated: dict[str, Any]) -> str:
    return page.written(stated)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_number_in_any_table_is_found_by_the_model_alone(number: int, report: Report, found: Found) -> None:
    stated = restated(report)
    columns = stated["views"][number - 1]["table"]["columns"]
    column = next(column for column in columns if column["kind"] == "number")
    before = column["cells"][2]
    column["cells"][2] = before + 1e-3
    (one,) = found(resigned(stated, number))
    assert (one.view, one.table, one.row.split()[0], one.column) == (number, "table", "3", column["name"])
    assert (one.stated, one.recomputed, one.finding) == (repr(before + 1e-3), repr(before), DIFFERS)
    assert one.difference == pytest.approx(1e-3)
    assert 0 < one.tolerance < 1e-4


@pytest.mark.parametrize(("column", "cell"), [("id", 5), ("token", "river")])
def test_a_whole_number_or_a_text_is_found_too(column: str, cell: Any, report: Report, found: Found) -> None:
    stated = restated(report)
    place = [one["name"] for one in stated["views"][4]["table"]["columns"]].index(column)
    stated["views"][4]["table"]["columns"][place]["cells"][1] = cell
    changes = found(resigned(stated, 5))
    assert {(change.view, change.row.split()[0], change.column, change.stated) for change in changes} == {
        (5, "2", column, str(cell))
    }


def test_a_digit_that_rounding_could_explain_is_found_by_its_mark(report: Report, found: Found) -> None:
    html, column = report.html(), report.items[0].numbers.table.columns[2]
    number = repr(column.cells[4])  # of a float32, so that every digit says something
    other = number[:-1] + ("1" if number[-1] != "1" else "2")
    start = html.index('id="stated"')
    (one,) = found(html[:start] + html[start:].replace(f"{number},", f"{other},", 1))
    assert (one.view, one.row.split()[0], one.column) == (1, "5", column.name)
    assert (one.stated, one.recomputed, one.finding) == (other, number, CHANGED)
    assert one.difference < one.tolerance


def test_a_digit_that_the_page_shows_is_found(report: Report, found: Found) -> None:
    html = report.html()
    table = html.index("<table data-view=2>")
    shown = re.compile(r"<td class=n>(0\.[0-9]{4})</td>").search(html, table)
    assert shown is not None
    digit = "1" if shown[1][-1] != "1" else "2"
    (one,) = found(html[: shown.end(1) - 1] + digit + html[shown.end(1) :])
    assert (one.view, one.table, one.finding) == (3, "table as shown", OTHERWISE)
    assert (one.stated, one.recomputed) == (shown[1][:-1] + digit, shown[1])


def test_a_number_in_a_note_is_found_by_its_reference(report: Report, found: Found) -> None:
    html = report.html()
    number = re.search(r'<data title="row 1, entropy_bits">([0-9.]+)</data>', html)
    assert number is not None
    digit = "1" if number[1][-1] != "1" else "2"
    (one,) = found(html[: number.end(1) - 1] + digit + html[number.end(1) :])
    assert (one.view, one.table, one.column, one.finding) == (3, "note", "row 1, column 3", OTHERWISE)
    assert number[1] in one.recomputed


@pytest.mark.parametrize("place", ["class=note>", 'id="stated"'])
def test_a_digit_of_a_note_that_nobody_can_compute_is_found_too(
    place: str, report: Report, found: Found
) -> None:
    html = report.html()
    start = html.index(place)
    changed = html[:start] + html[start:].replace("of 3 heads", "of 4 heads", 1)
    assert changed != html
    assert {(one.view, one.table) for one in found(changed)} == {(3, "note")}


@pytest.mark.parametrize(("number", "array"), [(1, "values"), (2, "values"), (4, "weights")])
def test_a_number_in_a_pictures_data_is_found_by_the_model_alone(
    number: int, array: str, report: Report, found: Found
) -> None:
    stated = restated(report)
    described, arrays = unpacked(report.items[number - 1].payloads[0])
    changed = {name: values.copy() for name, values in arrays.items()}
    at = (1,) * changed[array].ndim
    changed[array][at] += 1e-3
    payload = packed(described, changed)
    view = stated["views"][number - 1]
    view["payloads"][0], view["sha256"]["payloads"][0] = list(as_text(payload)), digest(payload)
    (one,) = found(unsigned(stated))
    assert (one.view, one.table, one.row) == (number, "picture 1", ", ".join("2" for _ in at))
    assert (one.column, one.finding) == (array, DIFFERS)
    assert one.difference == pytest.approx(1e-3, rel=1e-2)


def test_a_letter_of_a_pictures_data_is_found(report: Report, found: Found) -> None:
    html, letters = report.html(), as_text(report.items[0].payloads[0]).text
    middle = html.index(letters) + len(letters) // 2
    changed = found(html[:middle] + ("A" if html[middle] != "A" else "B") + html[middle + 1 :])
    assert changed
    assert {(one.view, one.table) for one in changed} == {(1, "picture 1")}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (("title",), "title"),
        (("code", "python"), "code"),
        (("provenance", "libraries", "torch"), "provenance"),
        (("provenance", "tokens"), "provenance"),
        (("tolerances", "table", 0, "error"), "tolerances"),
        (("view", "texts", 0, "text"), "provenance"),
    ],
)
def test_whatever_else_is_stated_is_covered(
    path: tuple[Any, ...], part: str, report: Report, found: Found
) -> None:
    stated = restated(report)
    *way, last = path
    held = stated["views"][0]
    for key in way:
        held = held[key]
    held[last] = held[last] * 2 if isinstance(held[last], float | int) else held[last] + " river"
    changed = found(unsigned(stated))
    assert part in {one.table for one in changed}
    assert {one.view for one in changed} == {1}


def test_what_is_changed_outside_of_all_data_is_found(report: Report, found: Found) -> None:
    html = report.html()
    (one,) = found(html.replace("max-width: 1080px", "max-width: 1081px", 1))
    assert (one.view, one.table) == (0, "file")


def test_another_model_is_said_first(report: Report, read: Any, models: NamedModels) -> None:
    here = models.open(ModelReference())
    other = replace(here, opened=replace(here.opened, weights_sha256="0" * 64))
    html = report.html().replace("max-width: 1080px", "max-width: 1081px", 1)
    verdict = verify(read(html), NamedModels(lambda _: other, _twins=models._twins))
    *models_found, page_found = verdict.differences
    assert {(one.table, one.finding) for one in models_found} == {("model", OTHER_MODEL)}
    assert [one.view for one in models_found] == [1, 2, 3, 4, 5]
    assert (page_found.table, page_found.finding) == ("file", NOT_RENDERED)
    assert verdict.differences[0].recomputed == "0" * 64


def test_a_model_that_lacks_what_was_asked_is_said_first(
    report: Report, read: Any, family: Callable[[str], Checkpoint]
) -> None:
    small = family("distilbert")
    read_back = read(report.html())
    assert report.items[0].entry.view.asked["layer"] == "2"
    few = replace(small, opened=replace(small.opened, layers=1))
    verdict = verify(read_back, NamedModels(lambda _: few, _twins={}))
    assert [difference.table for difference in verdict.differences][:5] == ["model"] * 5
    assert (
        "There is no layer 2"
        in next(difference for difference in verdict.differences if difference.table == "view").recomputed
    )


def test_a_changed_file_of_a_zip_is_found(archive: bytes, found: Found) -> None:
    whole = zipfile.ZipFile(io.BytesIO(archive))
    held = {name: whole.read(name) for name in whole.namelist()}
    assert {"manifest.json", "report.html", "1-attention/table.parquet", "1-attention/picture.svg"} <= {*held}
    frame = pd.read_parquet(io.BytesIO(held["3-heads/table.parquet"]))
    frame.loc[0, "entropy_bits"] += np.float32(0.5)
    sink = io.BytesIO()
    frame.to_parquet(sink)
    held["3-heads/table.parquet"] = sink.getvalue()
    held["1-attention/picture.svg"] = held["1-attention/picture.svg"].replace(b"0", b"1", 1)
    del held["5-tokens/view.json"]
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as other:
        for name, content in held.items():
            other.writestr(name, content)
    changed = found(target.getvalue())
    assert [(one.view, one.row) for one in changed if one.table == "file"] == [
        (0, "1-attention/picture.svg"),
        (0, "3-heads/table.parquet"),
        (0, "5-tokens/view.json"),
    ]
    (cell,) = [one for one in changed if one.table == "table.parquet"]
    assert (cell.view, cell.column) == (3, "entropy_bits")


# ---------------------------------------------------------------- the page


def test_no_text_is_markup(report: Report) -> None:
    html = report.html()
    assert "<img" not in html
    assert html.count("</script>") == 2
    assert html.count("<article") == 5
    assert "default-src 'none'" in html
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html)


def test_the_same_report_is_the_same_file(report: Report, archive: bytes) -> None:
    assert Report(report.title, report.items).zip() == archive


def test_a_large_table_is_shown_in_part_and_held_whole(models: NamedModels, found: Found) -> None:
    trace = models.open(ModelReference()).trace("the small boat " * 15)
    made = Report.of(
        Draft("", (DraftEntry(ViewFile.of(bert_probe.AttentionLong([0], [0]).of(trace))),)), models
    )
    html = made.html()
    assert "the first 200 of" in html
    assert html.count("<td") < 200 * 10 + 50
    assert len(made.stated["views"][0]["table"]["columns"][0]["cells"]) == len(trace.tokens) ** 2
    assert found(html) == ()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no report"),
        (b"<p>nothing</p>", "no report"),
        (b"PK\x03\x04 broken", "cannot be read"),
        (b'<script type="application/json" id="stated">{"a": }</script>', "cannot be read"),
        (b'<script type="application/json" id="stated">{"bert_probe_report": 9}</script>', "the format 9"),
        (
            b'<script type="application/json" id="stated">{"bert_probe_report": 1, "x": 2}</script>',
            "unknown here",
        ),
    ],
)
def test_what_is_no_report_is_said(content: bytes, sentence: str, read: Any) -> None:
    with pytest.raises(bert_probe.ProbeError, match=sentence):
        read(content)


@pytest.mark.parametrize(
    ("tray", "sentence"),
    [
        (Draft(), "nothing in the report"),
        (Draft("t" * 201), "nothing in the report"),
        (Draft("", (DraftEntry(ViewFile("Tokens")),)), "View 1"),
    ],
)
def test_what_cannot_be_reported_is_said(tray: Draft, sentence: str, models: NamedModels) -> None:
    with pytest.raises(bert_probe.ProbeError, match=sentence):
        Report.of(tray, models)


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        ("{{1, weight}}", "a column 'weight'"),
        ("{{99, id}}", "row 99"),
        ("{{0, id}}", "row 0"),
        ("x" * 20_001, "at most 20,000"),
    ],
)
def test_a_note_that_refers_to_nothing_is_said(
    note: str, sentence: str, report: Report, models: NamedModels
) -> None:
    with pytest.raises(bert_probe.ProbeError, match=f"View 1: .*{sentence}"):
        Report.of(Draft("", (DraftEntry(report.items[4].entry.view, note),)), models)


def test_table_that_is_too_large_is_refused_before_its_cells_are_read(models: NamedModels) -> None:
    trace = models.open(ModelReference()).trace("the small boat " * 20)
    view = ViewFile.of(bert_probe.AttentionLong([0], [0]).of(trace))
    with (
        patch.object(Table, "of", side_effect=AssertionError),
        patch.object(numbers, "MOST_CELLS", 100),
        pytest.raises(bert_probe.ProbeError, match=r"View 1: its table has [0-9,]+ cells"),
    ):
        Report.of(Draft("", (DraftEntry(view),)), models)
