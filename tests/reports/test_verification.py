"""Test that an unchanged report passes verification and that every changed digit is detected."""

from __future__ import annotations

import io
import json
import math
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
from bert_probe.analyses.outputs.lens import Lens
from bert_probe.analyses.outputs.tuned_lens import TuneLens
from bert_probe.analyses.retrieval import calibration
from bert_probe.analyses.retrieval.search_explanation import SearchExplanation
from bert_probe.analyses.retrieval.truncation_audit import TruncationAudit
from bert_probe.core import frames
from bert_probe.core.files import flatten_index
from bert_probe.errors import ReportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress as Progress
from bert_probe.model.progress import no_progress
from bert_probe.model.trace import Trace
from bert_probe.reports import numbers, page, tolerances, view_checks
from bert_probe.reports import report as report_module
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.numbers import (
    CHANGED,
    DIFFERS,
    DISPLAY_DIFFERS,
    NOT_RENDERED,
    OTHER_MODEL,
    Difference,
    NamedModels,
    ViewNumbers,
    ViewTolerances,
)
from bert_probe.reports.reading import ReportFile, read_report
from bert_probe.reports.report import MAX_BYTES, Report, text_files
from bert_probe.reports.tables import ReportTable, digest
from bert_probe.reports.tolerances import FLOOR, MIN_ERROR, Tolerance, of_table
from bert_probe.reports.verification import verify
from bert_probe.reports.view_checks import is_close
from bert_probe.reports.view_files import ModelReference, ViewFile
from bert_probe.text.documents import Document
from bert_probe.views.payload import encode_text, pack, unpack
from bert_probe.views.text import percentage
from tests.helpers import forgeries, questions, sentence_models
from tests.helpers.opening import share_opened_models
from tests.helpers.pages import HOSTILE

TEXT = "the small boat crosses the wide river"
STATING = b'<script type="application/json" id="stated">%s</script>'
NOTE = "The first head has an entropy of {{1, entropy_bits}}, of 3 heads; " + HOSTILE


@pytest.fixture(scope="module")
def models(family: Callable[[str], Checkpoint]) -> NamedModels:
    """Return a `NamedModels` object that opens the tiny test model for any reference."""
    return NamedModels(lambda _: family("bert"))


@pytest.fixture(scope="module")
def report(models: NamedModels) -> Report:
    """Return a report with five views: a heatmap, two texts, heads with a note, lines, tokens."""
    trace = models.open(ModelReference()).trace(TEXT)
    other = models.open(ModelReference()).trace(HOSTILE)
    results = [
        bert_probe.Attention(1, 2).of(trace),
        bert_probe.Similarity(1).of(trace, other),
        bert_probe.Heads().of(trace),
        bert_probe.Attention(0).of(trace),
        bert_probe.Tokens().of(other),
    ]
    views = [ViewFile.of(result) for result in results]
    views[3] = replace(views[3], drawn={"as": "lines", "layer": "2", "heads": "1.3", "head": "1"})
    entries = [DraftEntry(view, NOTE if number == 2 else "") for number, view in enumerate(views)]
    return Report.of(Draft(HOSTILE, tuple(entries)), models)


@pytest.fixture(scope="module")
def archive(report: Report) -> bytes:
    """Return the report as a ZIP."""
    return report.zip()


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str | bytes], ReportFile]:
    """Return a function that reads a report from its content, like `verify`."""

    def from_file(content: str | bytes) -> ReportFile:
        place = tmp_path / "a report"
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_report(place)

    return from_file


class Remembering(NamedModels):
    """Models that cache each computed view, because these tests never change the inputs of a view."""

    def computed(
        self, view: ViewFile, progress: Progress = no_progress
    ) -> tuple[ViewNumbers, ViewTolerances]:
        key = view.to_bytes()
        if key not in _KNOWN:
            _KNOWN[key] = super().computed(view, progress)
        return _KNOWN[key]


_KNOWN: dict[bytes, tuple[ViewNumbers, ViewTolerances]] = {}


FindDifferences = Callable[[str | bytes], tuple[Difference, ...]]


@pytest.fixture
def differences_of(read: Callable[[str | bytes], ReportFile], models: NamedModels) -> FindDifferences:
    """Return a function that verifies the content of a report and returns the differences."""
    remembering = Remembering(models.open, models._opened, models._references)
    return lambda content: verify(read(content), remembering).differences


def test_unchanged_report_passes(report: Report, archive: bytes, read: Any, models: NamedModels) -> None:
    for content in (report.html(), archive):
        verdict = verify(read(content), models)
        assert verdict.differences == ()
        assert verdict.numbers > 500
        assert verdict.remarks == (
            "View 3: these numbers in the note were written by the author and cannot be verified: "
            + ", ".join(re.findall("[0-9]+", NOTE)[1:])
            + ".",
        )


class BesideOthers(Checkpoint):
    """A model that pads each text in a batch with a longer text, so float32 sums are rounded differently."""

    def trace(self, text: str, pair: str | None = None, truncate: bool = False) -> Trace:
        return self.traces([(text, pair), (f"{TEXT} {TEXT} {TEXT}", None)], truncate)[0]


def test_report_passes_with_other_summation_order(report: Report, read: Any, models: NamedModels) -> None:
    here = models.open(ModelReference())
    other = BesideOthers(**{field.name: getattr(here, field.name) for field in fields(Checkpoint)})
    stated = read(report.html())
    again = stated.views[0].view.answer(other).result.table().to_numpy()
    assert (again != report.items[0].frame.to_numpy()).any(), "no differences"
    elsewhere = NamedModels(lambda _: other, _references=models._references)
    assert verify(stated, elsewhere).differences == ()


def test_map_passes_with_other_summation_order(read: Any, models: NamedModels) -> None:
    here = models.open(ModelReference())
    other = BesideOthers(**{field.name: getattr(here, field.name) for field in fields(Checkpoint)})
    view = ViewFile.of(bert_probe.TokenMap().of(here.trace(TEXT)))
    report = Report.of(Draft("", (DraftEntry(view),)), models)
    picture, drawn_again = (
        bert_probe.TokenMap().of(checkpoint.trace(TEXT)).planes.points for checkpoint in (here, other)
    )
    assert (picture != drawn_again).any(), "no differences"
    verdict = verify(read(report.zip()), NamedModels(lambda _: other, _references=models._references))
    assert verdict.differences == ()


def test_tolerance_follows_from_error_of_model(report: Report, models: NamedModels) -> None:
    item = report.items[0]
    (bound,) = item.tolerances.table
    (double,) = models.float64_references(item.entry.view)
    exact = item.entry.view.answer(double).result.table()
    assert exact.to_numpy().dtype == np.float64
    error = np.abs(item.frame.to_numpy() - exact.to_numpy()).max()
    # The report contains the shortest decimal representation of float32.
    assert 0 < bound.error == pytest.approx(error, rel=1e-2)
    assert bound.allowed == max(8 * bound.error, FLOOR * bound.largest)
    assert f"{bound.allowed:.2e}" in report.html()


def test_is_close_compares_numbers_within_tolerance() -> None:
    assert is_close(1.0, 1.1, 0.2)
    assert not is_close(1.0, 1.3, 0.2)
    assert is_close(None, None, 0)
    assert not is_close(None, 1.0, 9)
    assert is_close(float("inf"), float("inf"), 0)
    assert not is_close(float("inf"), 1.0, 9)
    assert not is_close("1", 1.0, 9)


def test_reordered_rows_are_matched() -> None:
    table = ReportTable.of(pd.DataFrame({"head": [1, 2, 3], "weight": np.float32([0.5, 0.4, 0.1])}))
    other = ReportTable.of(pd.DataFrame({"head": [2, 1, 3], "weight": [0.4000001, 0.5, 0.1]}))
    (bound,) = of_table(table, other)
    assert bound == Tolerance("weight", 0.5, pytest.approx(1e-7, rel=0.01))


@pytest.mark.parametrize(
    ("question", "column"),
    [
        (bert_probe.FindHeads([("boat", "river")]), "weight"),
        (bert_probe.Heads(), "entropy_bits"),
        (bert_probe.Heads(), "mean_distance"),
        (bert_probe.Attention(1, 2), "1 the"),
    ],
    ids=["sorted", "unsorted", "unsorted, other column", "matrix"],
)
def test_only_sorted_rows_with_nearly_equal_numbers_may_change_places(
    question: Any, column: str, read: Any, models: NamedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = question.of(models.open(ModelReference()).trace(TEXT))
    report = Report.of(Draft("", (DraftEntry(ViewFile.of(result)),)), models)
    stated = json.loads(json.dumps(report.stated))
    columns = stated["views"][0]["table"]["columns"]
    (cells,) = (given["cells"] for given in columns if given["name"] == column)
    gap, first, second = min(
        (abs(cells[i] - cells[j]), i, j)
        for j in range(len(cells))
        for i in range(j - 1)
        if cells[i] != cells[j]
    )
    for given in columns:
        given["cells"][first], given["cells"][second] = given["cells"][second], given["cells"][first]
    is_sorted = isinstance(question, bert_probe.FindHeads)
    for tolerance, is_accepted in ((2 * gap, is_sorted), (gap / 2, False)):
        monkeypatch.setattr(
            view_checks, "combine", lambda own, _, size=tolerance: {bound.of: size for bound in own}
        )
        differences = verify(read(resigned(stated, 1)), models).differences
        moved = [difference.row.split()[0] for difference in differences if difference.column == "position"]
        assert moved == ([] if is_accepted else [f"{first + 1}", f"{second + 1}"])


@pytest.mark.parametrize(
    ("own", "stated", "allowed"),
    [
        (0.001, 0.0, 0.008),
        (0.001, 0.002, 0.016),
        (0.001, 1.0, 0.064),  # 8 times the own tolerance
        (0.005, 1.0, 0.1),  # 1 % of the largest value
        (0.05, 1.0, 0.4),  # the own tolerance
    ],
)
def test_stated_tolerance_is_limited(own: float, stated: float, allowed: float) -> None:
    limits = tolerances.combine([Tolerance("a", 10.0, own)], [Tolerance("a", 10.0, stated)])
    assert limits == {"a": pytest.approx(allowed)}


def test_rounding_errors_may_differ_between_processors() -> None:
    stated = {"value": 31.0, "baseline_value": 28.0, "gap": 5e-9, "gap_share": 2e-9, "off": 0.0, "error": 0.0}
    leaves = {f"facts.{name}": value for name, value in stated.items()} | {"facts.difference_to_model": 0.0}
    bounds = {bound.of: bound for bound in tolerances.of_leaves(leaves, leaves)}
    assert {name: bounds[f"facts.{name}"].allowed for name in ("gap", "off", "error")} == {
        "gap": pytest.approx(31 * 2**-17),
        "off": pytest.approx(31 * 2**-17),
        "error": pytest.approx(31 * 2**-17),
    }
    assert bounds["facts.gap_share"].allowed == pytest.approx(31 / 3 * 2**-17)
    alone = {"facts.difference_to_model": 0.0, "facts.token": "boat", "facts.scale": math.inf}
    assert tolerances.of_leaves(alone, alone)[0].allowed == pytest.approx(2**-17), "no other finite fact"
    similarity = {"facts.dot": 180.0, "facts.reference": 90.0, "facts.error": 7e-4, "facts.steps": 1000}
    (bound,) = (each for each in tolerances.of_leaves(similarity, similarity) if each.of == "facts.error")
    assert bound.allowed == pytest.approx(180 * 2**-17)
    assert bounds["facts.value"].allowed == pytest.approx(31 * 2**-18)
    assert not any(bound.is_large for bound in bounds.values())


def test_numbers_with_large_tolerances_are_named(
    read: Any, models: NamedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = bert_probe.Heads().of(models.open(ModelReference()).trace(TEXT))
    draft = Draft("", (DraftEntry(ViewFile.of(result)),))
    assert verify(read(Report.of(draft, models).html()), models).remarks == ()
    monkeypatch.setattr(tolerances, "FACTOR", 10_000_000)
    verdict = verify(read(Report.of(draft, models).html()), models)
    assert verdict.differences == ()
    (remark,) = verdict.remarks
    assert "View 1: the tolerance of these numbers is more than 1% of the largest" in remark
    assert re.search(r"verified only roughly: entropy_bits \(± [0-9.]+\)", remark)


def test_report_of_recomputed_steps_is_verified(read: Any, models: NamedModels) -> None:
    trace = models.open(ModelReference()).trace(TEXT)
    results = [bert_probe.Pooler().of(trace), bert_probe.Embedding(token="boat").of(trace)]
    draft = Draft("", tuple(DraftEntry(ViewFile.of(result)) for result in results))
    verdict = verify(read(Report.of(draft, models).html()), models)
    assert verdict.differences == ()


def test_tuned_lens_is_named_as_not_verified(
    read: Any, trained_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    checkpoint = bert_probe.load(trained_folder("bert", "fill-mask"))
    lens = TuneLens(steps=1).of(checkpoint, questions.SENTENCES)
    lens.save(tmp_path / "lens.safetensors")
    tuned = str(tmp_path / "lens.safetensors")
    result = Lens(mask="boat", tuned=tuned).of(checkpoint.trace(TEXT))
    models = NamedModels(lambda _: checkpoint)
    verdict = verify(read(Report.of(Draft("", (DraftEntry(ViewFile.of(result)),)), models).html()), models)
    assert verdict.differences == ()
    (remark,) = verdict.remarks
    assert lens.digest in remark
    assert "cannot be verified" in remark


@pytest.mark.parametrize(("rows", "is_accepted"), [((0, 1), True), ((0, 5), False)])
def test_rows_change_places_only_within_their_group(
    rows: tuple[int, int], is_accepted: bool, read: Any, models: NamedModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = SearchExplanation("small boats cross rivers", "1", "2", scorer="bm25")
    result = question.of(models.open(ModelReference()), ["small boats rest", "small rivers cross towns"])
    assert [*result.table()["document"]] == ["1"] * 4 + ["2"] * 4
    stated = json.loads(json.dumps(Report.of(Draft("", (DraftEntry(ViewFile.of(result)),)), models).stated))
    for given in stated["views"][0]["table"]["columns"]:
        first, second = rows
        given["cells"][first], given["cells"][second] = given["cells"][second], given["cells"][first]
    monkeypatch.setattr(view_checks, "combine", lambda own, _: {bound.of: 9.0 for bound in own})
    differences = verify(read(resigned(stated, 1)), models).differences
    assert ("position" not in {difference.column for difference in differences}) == is_accepted


# ---------------------------------------------------------------- changed


def restated(report: Report) -> dict[str, Any]:
    """Return a copy of the report's data that a test can change."""
    contents: dict[str, Any] = json.loads(json.dumps(report.stated))
    return contents


def resigned(stated: dict[str, Any], number: int) -> str:
    """Return the page of changed data, with new digests and checksums of view `number` (from 1)."""
    view = stated["views"][number - 1]
    view["sha256"] = {name: digest(view[name]) for name in view["sha256"] if name != "payloads"} | {
        "payloads": view["sha256"]["payloads"]
    }
    view["marks"] = ReportTable.from_json(view["table"]).marks()
    return page.render_page(stated, MAX_BYTES)


def unsigned(stated: dict[str, Any]) -> str:
    return page.render_page(stated, MAX_BYTES)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_changed_table_number_is_found_without_digests(
    number: int, report: Report, differences_of: FindDifferences
) -> None:
    stated = restated(report)
    columns = stated["views"][number - 1]["table"]["columns"]
    column = next(column for column in columns if column["kind"] == "number")
    before = column["cells"][2]
    column["cells"][2] = before + 1e-3
    (difference,) = differences_of(resigned(stated, number))
    assert (difference.view, difference.table, difference.row.split()[0], difference.column) == (
        number,
        "table",
        "3",
        column["name"],
    )
    assert (difference.stated, difference.recomputed, difference.finding) == (
        repr(before + 1e-3),
        repr(before),
        DIFFERS,
    )
    assert difference.difference == pytest.approx(1e-3)
    assert 0 < difference.tolerance < 1e-4


@pytest.mark.parametrize(("column", "cell"), [("id", 5), ("token", "river")])
def test_changed_integer_or_text_is_found(
    column: str, cell: Any, report: Report, differences_of: FindDifferences
) -> None:
    stated = restated(report)
    place = [entry["name"] for entry in stated["views"][4]["table"]["columns"]].index(column)
    stated["views"][4]["table"]["columns"][place]["cells"][1] = cell
    changes = differences_of(resigned(stated, 5))
    assert {(change.view, change.row.split()[0], change.column, change.stated) for change in changes} == {
        (5, "2", column, str(cell))
    }


def test_change_within_tolerance_is_found_by_checksum(
    report: Report, differences_of: FindDifferences
) -> None:
    html, column = report.html(), report.items[0].table.columns[2]
    # This is the shortest representation of a float32, so every digit matters.
    number = repr(column.cells[4])
    other = number[:-1] + ("1" if number[-1] != "1" else "2")
    start = html.index('id="stated"')
    (difference,) = differences_of(html[:start] + html[start:].replace(f"{number},", f"{other},", 1))
    assert (difference.view, difference.row.split()[0], difference.column) == (1, "5", column.name)
    assert (difference.stated, difference.recomputed, difference.finding) == (other, number, CHANGED)
    assert difference.difference < difference.tolerance


def test_changed_digit_in_page_is_found(report: Report, differences_of: FindDifferences) -> None:
    html = report.html()
    table = html.index("<table data-view=2>")
    displayed = re.compile(r"<td class=n>(0\.[0-9]{4})</td>").search(html, table)
    assert displayed is not None
    digit = "1" if displayed[1][-1] != "1" else "2"
    (difference,) = differences_of(html[: displayed.end(1) - 1] + digit + html[displayed.end(1) :])
    assert (difference.view, difference.table, difference.finding) == (3, "table as shown", DISPLAY_DIFFERS)
    assert (difference.stated, difference.recomputed) == (displayed[1][:-1] + digit, displayed[1])


def test_changed_reference_in_note_is_found(report: Report, differences_of: FindDifferences) -> None:
    html = report.html()
    number = re.search(r'<data title="row 1, entropy_bits">([0-9.]+)</data>', html)
    assert number is not None
    digit = "1" if number[1][-1] != "1" else "2"
    (difference,) = differences_of(html[: number.end(1) - 1] + digit + html[number.end(1) :])
    assert (difference.view, difference.table, difference.column, difference.finding) == (
        3,
        "note",
        "row 1, column 3",
        DISPLAY_DIFFERS,
    )
    assert number[1] in difference.recomputed


@pytest.mark.parametrize("place", ["class=note>", 'id="stated"'])
def test_changed_number_of_author_in_note_is_found(
    place: str, report: Report, differences_of: FindDifferences
) -> None:
    html = report.html()
    start = html.index(place)
    changed = html[:start] + html[start:].replace("of 3 heads", "of 4 heads", 1)
    assert changed != html
    assert {(difference.view, difference.table) for difference in differences_of(changed)} == {(3, "note")}


@pytest.mark.parametrize(("number", "array"), [(1, "values"), (2, "values"), (4, "weights")])
def test_changed_picture_number_is_found_without_digests(
    number: int, array: str, report: Report, differences_of: FindDifferences
) -> None:
    stated = restated(report)
    described, arrays = unpack(report.items[number - 1].payloads[0])
    changed = {name: values.copy() for name, values in arrays.items()}
    index = (1,) * changed[array].ndim
    changed[array][index] += 1e-3
    payload = pack(described, changed)
    view = stated["views"][number - 1]
    view["payloads"][0], view["sha256"]["payloads"][0] = list(encode_text(payload)), digest(payload)
    (difference,) = differences_of(unsigned(stated))
    assert (difference.view, difference.table, difference.row) == (
        number,
        "picture 1",
        ", ".join("2" for _ in index),
    )
    assert (difference.column, difference.finding) == (array, DIFFERS)
    assert difference.difference == pytest.approx(1e-3, rel=1e-2)


def test_changed_letter_in_picture_is_found(report: Report, differences_of: FindDifferences) -> None:
    html, letters = report.html(), encode_text(report.items[0].payloads[0]).text
    middle = html.index(letters) + len(letters) // 2
    changed = differences_of(html[:middle] + ("A" if html[middle] != "A" else "B") + html[middle + 1 :])
    assert changed
    assert {(difference.view, difference.table) for difference in changed} == {(1, "picture 1")}


def test_negative_tolerance_is_refused(report: Report, differences_of: FindDifferences) -> None:
    stated = restated(report)
    stated["views"][0]["tolerances"]["table"][0]["error"] *= -1
    with pytest.raises(ReportError, match="A tolerance in the report is negative"):
        differences_of(unsigned(stated))


@pytest.mark.gate(cases=2)
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
def test_all_other_statements_are_checked(
    path: tuple[Any, ...], part: str, report: Report, differences_of: FindDifferences
) -> None:
    stated = restated(report)
    *way, last = path
    contents = stated["views"][0]
    for key in way:
        contents = contents[key]
    contents[last] = (
        contents[last] * 2 if isinstance(contents[last], float | int) else contents[last] + " river"
    )
    changed = differences_of(unsigned(stated))
    assert part in {difference.table for difference in changed}
    assert {difference.view for difference in changed} == {1}


@pytest.mark.prove
def test_scores_of_sentence_vectors_are_calibrated(
    family_folder: Callable[[str], Path], tmp_path: Path, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = calibration.reference_sentences()[::5]
    monkeypatch.setattr(calibration, "reference_sentences", lambda: reference)
    folder = sentence_models.save("prompts optional", family_folder("bert"), tmp_path / "model")
    checkpoint = bert_probe.load(folder)
    models = NamedModels(lambda _: checkpoint)
    texts = (TEXT, "a boat on the river")
    similarity = bert_probe.SentenceSimilarity().of(*map(checkpoint.trace, texts))
    sentences = bert_probe.Sentences("model", "nearest").of(checkpoint, texts)
    prompted = bert_probe.SentenceSimilarity(prompt="query", pair_prompt="passage").of(
        *map(checkpoint.trace, texts)
    )
    entries = [DraftEntry(ViewFile.of(result)) for result in (similarity, sentences, prompted)]
    report = Report.of(Draft("", tuple(entries)), models)
    random = bert_probe.SimilarityCalibration("model").of(checkpoint, reference).random
    html = report.html()
    share = percentage(100 * float((random < similarity.score).mean()))
    sentence = (
        f"{similarity.score:.4f} is higher than the cosine of {share} of random pairs of 60 short English"
    )
    assert sentence in html
    assert "Half of the random pairs of 60 short English reference sentences have a cosine below" in html
    assert html.count("<figure class=calibration>") == 3
    assert "60 short English reference sentences with the prompts of these two texts" in html
    for change, is_found in ((0.02, False), (1.0, True)):  # tolerance: 0.08
        stated = restated(report)
        for view in (0, 2):
            stated["views"][view]["provenance"]["facts"]["calibration"]["percentile"] -= change
        differences = verify(read(unsigned(stated)), models).differences
        differing = {
            (difference.view, difference.column)
            for difference in differences
            if difference.finding == DIFFERS
        }
        changed = {(number, "facts.calibration.percentile") for number in (1, 3)}
        assert differing == (changed if is_found else set())
    whole = restated(report)["views"][0]["provenance"]["facts"]["calibration"]
    empty = {**whole, "histogram": {"low": 0, "high": 0, "percent": []}}
    broken: list[Any] = [[], {"sentences": 1}, empty, {**whole, "score": "x"}, {**whole, "score_name": None}]
    for invalid in broken:
        stated = restated(report)
        stated["views"][0]["provenance"]["facts"]["calibration"] = invalid
        with pytest.raises(ReportError, match="The calibration of a view is invalid"):
            page.render_page(stated, MAX_BYTES)


def test_change_outside_of_data_is_found(report: Report, differences_of: FindDifferences) -> None:
    html = report.html()
    (difference,) = differences_of(html.replace("max-width: 1080px", "max-width: 1081px", 1))
    assert (difference.view, difference.table) == (0, "file")


def test_other_model_is_reported_first(report: Report, read: Any, models: NamedModels) -> None:
    here = models.open(ModelReference())
    other = replace(here, initial_description=replace(here.initial_description, weights_sha256="0" * 64))
    html = report.html().replace("max-width: 1080px", "max-width: 1081px", 1)
    verdict = verify(read(html), NamedModels(lambda _: other, _references=models._references))
    *models_found, page_found = verdict.differences
    assert {(difference.table, difference.finding) for difference in models_found} == {("model", OTHER_MODEL)}
    assert [difference.view for difference in models_found] == [1, 2, 3, 4, 5]
    assert (page_found.table, page_found.finding) == ("file", NOT_RENDERED)
    assert verdict.differences[0].recomputed == "0" * 64


def test_model_without_layer_is_reported_first(
    report: Report, read: Any, family: Callable[[str], Checkpoint]
) -> None:
    small = family("distilbert")
    read_back = read(report.html())
    assert report.items[0].entry.view.asked["layer"] == "2"
    few = replace(small, initial_description=replace(small.initial_description, layers=1))
    verdict = verify(read_back, NamedModels(lambda _: few, _references={}))
    assert [difference.table for difference in verdict.differences][:5] == ["model"] * 5
    assert (
        "There is no layer 2"
        in next(difference for difference in verdict.differences if difference.table == "view").recomputed
    )


def test_changed_file_in_zip_is_found(archive: bytes, differences_of: FindDifferences) -> None:
    complete = zipfile.ZipFile(io.BytesIO(archive))
    contents = {name: complete.read(name) for name in complete.namelist()}
    assert {"manifest.json", "report.html", "1-attention/table.parquet", "1-attention/picture.svg"} <= {
        *contents
    }
    frame = pd.read_parquet(io.BytesIO(contents["3-heads/table.parquet"]))
    frame.loc[0, "entropy_bits"] += np.float32(0.5)
    sink = io.BytesIO()
    frame.to_parquet(sink)
    contents["3-heads/table.parquet"] = sink.getvalue()
    contents["1-attention/picture.svg"] = contents["1-attention/picture.svg"].replace(b"0", b"1", 1)
    del contents["5-tokens/view.json"]
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as other:
        for name, content in contents.items():
            other.writestr(name, content)
    changed = differences_of(target.getvalue())
    assert [(difference.view, difference.row) for difference in changed if difference.table == "file"] == [
        (0, "1-attention/picture.svg"),
        (0, "3-heads/table.parquet"),
        (0, "5-tokens/view.json"),
    ]


def test_zip_that_could_not_be_read_is_not_written(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(map(len, forgeries.unzip(report.zip()).values()))
    monkeypatch.setattr(report_module, "MAX_UNPACKED", size)
    report.zip()
    monkeypatch.setattr(report_module, "MAX_UNPACKED", size - 1)
    with pytest.raises(ReportError, match=r"Save the report as a page \(HTML\), or remove views\.$"):
        report.zip()


@pytest.mark.prove
@pytest.mark.parametrize(
    ("question", "rows", "name"),
    [
        (bert_probe.Sentences(), (TEXT, "Ein Käse; 語", "=1+1"), "sentences.txt"),
        (
            TruncationAudit(),
            (Document(f"{TEXT}\nacross the sea", "a b", "Boats"), Document("A map.")),
            "documents.jsonl",
        ),
    ],
)
def test_code_in_a_zip_reads_the_sentences_of_the_view(
    question: Any,
    rows: tuple[str, ...],
    name: str,
    minilm: Checkpoint,
    read: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = question.of(minilm, rows)
    models = Remembering(lambda _: minilm)
    views = ViewFile.of(bert_probe.Tokens().of(minilm.trace(TEXT))), ViewFile.of(result)
    contents = forgeries.unzip(Report.of(Draft("", tuple(map(DraftEntry, views))), models).zip())
    for path, content in contents.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    folder = f"2-{question.command}"
    file = f"{folder}/{name}"
    monkeypatch.chdir(tmp_path / folder)
    *lines, last = Path("code.py").read_text(encoding="utf-8").splitlines()
    with share_opened_models():
        names: dict[str, Any] = {}
        exec("\n".join(lines), names)
        again = eval(last, names)
    pd.testing.assert_frame_equal(flatten_index(again), pd.read_parquet("table.parquet"), check_exact=True)
    assert again.attrs["provenance"]["sentences_sha256"] == result.provenance["sentences_sha256"]

    assert verify(read(forgeries.zip_files(contents)), models).differences == ()
    changed = contents | {file: contents[file].replace(b"river", b"ocean")}
    (difference,) = verify(read(forgeries.zip_files(changed)), models).differences
    assert (difference.row, difference.finding) == (file, NOT_RENDERED)
    del changed[file]
    (difference,) = verify(read(forgeries.zip_files(changed)), models).differences
    assert (difference.row, difference.recomputed) == (file, "missing")


def unread_column(content: str) -> str:
    first, *lines = content.splitlines()
    return "\n".join([f"{first},remark", *(f"{line},experts agreed" for line in lines)]) + "\n"


def sealed(files: dict[str, bytes], stated: dict[str, Any]) -> bytes:
    """Return the ZIP of a report after its data were forged."""
    view = stated["views"][0]["view"]
    folder = next(name for name in files if name.endswith("view.json")).removesuffix("view.json")
    return forgeries.zip_files(
        files
        | {"report.html": forgeries.render(stated), f"{folder}view.json": ViewFile.from_json(view).to_bytes()}
        | {f"{folder}{file['file']}": file["content"].encode() for file in view["files"].values()}
    )


@pytest.mark.parametrize(
    ("inputs", "question", "name", "forge"),
    [
        (questions.scored_pairs, bert_probe.SimilarityEvaluation(), "pairs", unread_column),
        (questions.scored_pairs, bert_probe.SimilarityEvaluation(), "pairs", lambda text: f"{text}\n\n"),
        (
            questions.two_treebanks,
            bert_probe.Relations(show="all"),
            "chosen",
            lambda text: re.sub(r"# text = .", "# text = FORGED ", text, count=1),
        ),
    ],
    ids=["column", "blank lines", "comment"],
)
def test_content_of_an_input_file_that_the_question_does_not_read_is_found(
    inputs: Callable[[Checkpoint], Any],
    question: Any,
    name: str,
    forge: Callable[[str], str],
    models: NamedModels,
    differences_of: FindDifferences,
) -> None:
    checkpoint = models.open(ModelReference())
    given = inputs(checkpoint)
    result = question.of(*given)
    names = [*result.inputs.sentences["files"]]
    report = Report.of(
        Draft("", (DraftEntry(ViewFile.of(result, dict(zip(names, given[1:], strict=True)))),)), models
    )
    assert differences_of(report.zip()) == ()
    stated = json.loads(json.dumps(report.stated))
    file = stated["views"][0]["view"]["files"][name]
    honest, file["content"] = file["content"], forge(file["content"])
    assert file["content"] != honest
    for content in (forgeries.render(stated), sealed(forgeries.unzip(report.zip()), stated)):
        (difference,) = differences_of(content)
        assert (difference.table, difference.row, difference.finding) == ("files", name, NOT_RENDERED)

    # A report of a view file with this content contains the file without it.
    view = ViewFile.from_json(stated["views"][0]["view"])
    again = Report.of(Draft("", (DraftEntry(view),)), models)
    assert again.stated["views"][0]["view"]["files"][name]["content"] == honest
    assert differences_of(again.zip()) == ()


def test_sentences_that_a_file_cannot_contain_are_named_in_a_zip() -> None:
    parts = {"code": {"python": "", "shell": ""}, "note": {"shown": ""}, "provenance": {}}
    texts = ("a boat\nb", "a boat "), ('{"_id": "1", "text": "a boat "}',)
    for question, sentences, stem in zip(
        ("Sentences", "Search"), texts, ("sentences", "documents"), strict=True
    ):
        for sentence in sentences:
            files = text_files(ViewFile(question, sentences=(sentence,)), parts)
            assert {*files} == {*FILES_OF_A_VIEW, f"{stem}.missing.txt"}
            assert f"would be read as other {stem}".encode() in files[f"{stem}.missing.txt"]
    looks_like_a_table = ("text,label", "boat,a")
    files = text_files(ViewFile("Sentences", sentences=looks_like_a_table), parts)
    assert files["sentences.txt"] == b"text,label\nboat,a\n"


FILES_OF_A_VIEW = ("code.py", "code.sh", "provenance.json", "view.json")


# ---------------------------------------------------------------- the page


def test_texts_are_escaped(report: Report) -> None:
    html = report.html()
    assert "<img" not in html
    assert html.count("</script>") == 2
    assert html.count("<article") == 5
    assert "default-src 'none'" in html
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html)


def test_same_report_gives_same_bytes(report: Report, archive: bytes) -> None:
    assert Report(report.title, report.items).zip() == archive


def test_large_table_is_displayed_in_part_but_saved_completely(
    models: NamedModels, differences_of: FindDifferences
) -> None:
    trace = models.open(ModelReference()).trace("the small boat " * 15)
    report = Report.of(
        Draft("", (DraftEntry(ViewFile.of(bert_probe.AttentionLong([0], [0]).of(trace))),)), models
    )
    html = report.html()
    assert "the first 200 of" in html
    assert html.count("<td") < 200 * 10 + 50
    assert len(report.stated["views"][0]["table"]["columns"][0]["cells"]) == len(trace.tokens) ** 2
    assert differences_of(html) == ()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a BERT Probe report"),
        (b"<p>nothing</p>", "is not a BERT Probe report"),
        (b"PK\x03\x04 broken", "cannot be read"),
        (b'<script type="application/json" id="stated">{"a": }</script>', "cannot be read"),
        (
            b'<script type="application/json" id="stated">{"bert_probe_report": 9}</script>',
            "has format 9, .*Update BERT Probe",
        ),
        (
            b'<script type="application/json" id="stated">{"bert_probe_report": 1}</script>',
            "was written by an earlier version of BERT Probe: format 1, .* create the report again",
        ),
        (
            b'<script type="application/json" id="stated">{"bert_probe_report": 2, "x": 2}</script>',
            "unknown key",
        ),
    ],
)
def test_files_that_are_not_reports_are_refused(content: bytes, sentence: str, read: Any) -> None:
    with pytest.raises(bert_probe.ProbeError, match=sentence):
        read(content)


@pytest.mark.parametrize(
    ("tray", "sentence"),
    [
        (Draft(), "has no views yet"),
        (Draft("t" * 201), "has no views yet"),
        (Draft("", (DraftEntry(ViewFile("Tokens")),)), "View 1"),
    ],
)
def test_invalid_drafts_are_refused(tray: Draft, sentence: str, models: NamedModels) -> None:
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
def test_note_with_invalid_reference_is_refused(
    note: str, sentence: str, report: Report, models: NamedModels
) -> None:
    with pytest.raises(bert_probe.ProbeError, match=f"View 1: .*{sentence}"):
        Report.of(Draft("", (DraftEntry(report.items[4].entry.view, note),)), models)


def test_table_that_is_too_large_is_refused_before_its_cells_are_read(models: NamedModels) -> None:
    trace = models.open(ModelReference()).trace("the small boat " * 20)
    view = ViewFile.of(bert_probe.AttentionLong([0], [0]).of(trace))
    with (
        patch.object(ReportTable, "of", side_effect=AssertionError),
        patch.object(numbers, "MAX_CELLS", 100),
        pytest.raises(bert_probe.ProbeError, match=r"View 1: its table has more than 100 cells"),
    ):
        Report.of(Draft("", (DraftEntry(view),)), models)


def test_different_quantities_do_not_share_a_tolerance() -> None:
    names, values = ["accuracy", "loss", "texts"], [0.5, 2.5, 4_000.0]
    table = ReportTable.of(pd.DataFrame({"measure": names, "value": values, "low": 0.4}))
    limits = {tolerance.of: tolerance.allowed for tolerance in of_table(table, table)}
    assert limits["value of accuracy"] == pytest.approx(0.5 * 8 * MIN_ERROR)
    assert limits["value of texts"] == pytest.approx(4_000 * FLOOR)
    assert limits["low of loss"] == pytest.approx(0.4 * 8 * MIN_ERROR)

    vectors = np.array([[0.01, 0.02], [5.0, 3.5]])
    groups = [each.of for each in tolerances.of_arrays({"values": vectors}, {"values": vectors}, "step")]
    assert groups == ["values of row 1", "values of row 2"]
    assert len(tolerances.of_arrays({"values": vectors}, {"values": vectors}, "token")) == 1
    steps = ReportTable.of(frames.vectors(vectors, ["segment", "sum"], "step"))
    limits = {tolerance.of: tolerance.allowed for tolerance in of_table(steps, steps)}
    assert limits == {"1 segment": 0.02 * FLOOR, "2 sum": 5.0 * FLOOR}


def test_tolerances_only_of_arrays_with_a_counterpart_of_the_same_shape() -> None:
    single = {name: np.ones(2, np.float32) for name in ("a", "b", "c")} | {"d": np.ones(2, np.int64)}
    double = {"a": np.ones(2), "b": np.ones(3), "d": np.ones(2, np.int64)}
    assert [tolerance.of for tolerance in tolerances.of_arrays(single, double)] == ["a"]
