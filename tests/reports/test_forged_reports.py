"""Test that `verify` detects every forgery, even if all digests in the file match the forged content."""

from __future__ import annotations

import base64
import copy
import io
import json
import random
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import bert_probe
from bert_probe.errors import ReportError, ReportTooLargeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.reports import json_reader, numbers, zip_checks
from bert_probe.reports import page as page_writer
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.numbers import (
    CHANGED,
    OTHER_VERSION,
    RECEIVED,
    ROWS,
    NamedModels,
    PicturePayload,
)
from bert_probe.reports.page import render_page
from bert_probe.reports.reading import read_report
from bert_probe.reports.report import MAX_BYTES, Report, picture_file
from bert_probe.reports.tables import digest
from bert_probe.reports.tolerances import FACTOR, MAX_STATED_FACTOR, Tolerance, combine, of_arrays
from bert_probe.reports.verification import Verdict, verify
from bert_probe.reports.view_files import ModelReference, ViewFile
from bert_probe.reports.zip_checks import is_same_picture
from bert_probe.views.head_view import attention_of_vectors
from bert_probe.views.page import Page
from bert_probe.views.payload import EmbeddedPayload, decode_text, encode_text, pack, unpack
from tests.helpers import forgeries
from tests.helpers.exactness import assert_exact
from tests.helpers.families import build
from tests.helpers.forgeries import RememberedModels, render, reseal, unzip, zip_files
from tests.helpers.gate import examples, prove_unless

TEXT = "the small boat crosses the wide river"
NOTE = "The first head has an entropy of {{1, entropy_bits}}."
DATA = re.compile(rb'<script type="application/json" id="stated">.*?</script>', re.S)
TABLE = re.compile(rb"<table data-view=0>.*?</table>", re.S)

Verify = Callable[[bytes], Verdict]


@pytest.fixture(scope="module")
def models(family: Callable[[str], Checkpoint]) -> NamedModels:
    return RememberedModels(forgeries.opener_of(family("bert")))


@pytest.fixture(scope="module")
def report(models: NamedModels) -> Report:
    """Return a report with two views: heads with a note, and attention of one head."""
    trace = models.open(ModelReference()).trace(TEXT)
    views = [ViewFile.of(bert_probe.Heads().of(trace)), ViewFile.of(bert_probe.Attention(1, 2).of(trace))]
    return Report.of(Draft("Two views", (DraftEntry(views[0], NOTE), DraftEntry(views[1]))), models)


@pytest.fixture(scope="module")
def page(report: Report) -> bytes:
    return report.html().encode()


@pytest.fixture(scope="module")
def archive(report: Report) -> bytes:
    return report.zip()


@pytest.fixture
def stated(report: Report) -> dict[str, Any]:
    """Return a copy of the report's data that a test can change."""
    copy: dict[str, Any] = json.loads(json.dumps(report.stated))
    return copy


@pytest.fixture
def verified(tmp_path: Path, models: NamedModels) -> Verify:
    """Return a function that verifies the content of a report and returns the verdict."""

    def from_content(content: bytes) -> Verdict:
        place = tmp_path / "report"
        place.write_bytes(content)
        return verify(read_report(place), models)

    return from_content


@pytest.mark.parametrize("limit", ["MAX_CONTAINERS", "MAX_KEYS", "MAX_STRINGS"])
def test_report_that_could_not_be_verified_is_not_created(
    limit: str, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_reader, limit, 10)
    with pytest.raises(ReportError, match=r"could not be verified: it has more than 10 .*\. Remove views"):
        report.html()


def test_report_that_is_too_large_is_not_rendered(report: Report) -> None:
    size = len(report.html().encode())
    assert len(report.html(size).encode()) == size
    for limit in (size - 1, size // 4, 10):
        with pytest.raises(ReportTooLargeError, match=r"has more than 0 MB\. Remove views"):
            report.html(limit)


@pytest.mark.prove
def test_table_with_too_much_text_is_refused(
    family: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of a table may repeat a long text."""
    models = NamedModels(forgeries.opener_of(family("bert")))
    view = ViewFile.of(bert_probe.Sentences().of(family("bert"), ["a river", "a boat"]))
    characters = models.computed(view)[0].table.characters
    monkeypatch.setattr(numbers, "MAX_TABLE_CHARACTERS", characters)
    models.computed(view)
    monkeypatch.setattr(numbers, "MAX_TABLE_CHARACTERS", characters - 1)
    with pytest.raises(ReportError, match=f"have {characters:,} characters, but at most"):
        models.computed(view)


def _holders(view: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return where texts are in the data of a view: name → container and key."""
    return {
        "text": (view["provenance"], "text"),
        "title": (view, "title"),
        "note": (view["note"], "written"),
        "python": (view["code"], "python"),
        "caveat": (view["picture"], "caveat"),
        "column": (view["table"]["columns"][0], "name"),
        "tolerance": (view["tolerances"]["table"][0], "of"),
    }


def with_data(page: bytes, data: bytes) -> bytes:
    """Return a page with other data, which is not rendered from them."""
    start = page.index(b">", page.index(b'id="stated"')) + 1
    return page[:start] + data + page[page.index(b"</script>", start) :]


@pytest.mark.parametrize("character", "&'")
@pytest.mark.parametrize("name", ["text", "title", "note", "python", "caveat", "column", "tolerance", "key"])
def test_texts_that_the_page_cannot_show_are_refused(
    name: str, character: str, stated: dict[str, Any], page: bytes, verified: Verify
) -> None:
    """HTML takes up to six times as many characters as a text, and so gigabytes of memory."""
    view = stated["views"][0]
    text = character * (len(page) // 3)
    holder, key = (view["provenance"], text) if name == "key" else _holders(view)[name]
    holder[key] = text
    with pytest.raises(ReportError, match=r"characters, but at most|more text than its page shows"):
        verified(with_data(page, json.dumps(stated).encode()))


def test_numbers_that_are_written_with_more_digits_are_refused(
    stated: dict[str, Any], page: bytes, verified: Verify
) -> None:
    stated["views"][0]["provenance"]["more"] = [1e15]
    data = json.dumps(stated).encode().replace(b"1000000000000000.0", b"1e15," * (len(page) // 7) + b"1e15")
    with pytest.raises(ReportError, match=r"characters, but at most|more text than its page shows"):
        verified(with_data(page, data))


def test_number_of_values_is_checked_before_the_page_is_rendered(
    stated: dict[str, Any], verified: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated["views"][0]["provenance"]["more"] = [0] * 1_000
    content = render(stated)
    monkeypatch.setattr(numbers, "_MAX_LEAVES", 1_000)
    monkeypatch.setattr(page_writer, "render_page", pytest.fail)
    with pytest.raises(ReportError, match="more than 1,000 values outside its table"):
        verified(content)


def test_markup_in_the_data_is_refused(page: bytes, verified: Verify) -> None:
    start = page.index(b'"title":"', page.index(b'id="stated"')) + len(b'"title":"')
    with pytest.raises(ReportError, match="its data have no end, or contain markup"):
        verified(page[:start] + b"<" * 10 + page[start:])


def test_sealed_original_passes(
    page: bytes, archive: bytes, stated: dict[str, Any], verified: Verify
) -> None:
    for content in (page, reseal(page), render(stated), archive, zip_files(unzip(archive))):
        verdict = verified(content)
        assert (verdict.differences, verdict.remarks) == ((), ())


# ---------------------------------------------------------------- the page


def _false_note(page: bytes) -> bytes:
    return page.replace(b"<p class=note>", b"<p class=note>It has 9.9 bits.</p><p class=note hidden>", 1)


def _extra_cell(page: bytes) -> bytes:
    return TABLE.sub(
        lambda table: table[0].replace(b"</tr></tbody>", b"<td class=n>0.9</td></tr></tbody>"), page
    )


def _false_table(page: bytes) -> bytes:
    def hide(table: re.Match[bytes]) -> bytes:
        displayed = (
            table[0].replace(b"<table data-view=0>", b"<table>").replace(b"<td class=n>0.", b"<td class=n>9.")
        )
        return displayed + table[0].replace(b"<table", b"<table hidden")

    return TABLE.sub(hide, page)


def _false_data(page: bytes) -> bytes:
    def twice(data: re.Match[bytes]) -> bytes:
        false = data[0].replace(b'"cells":[', b'"cells":[9,').replace(b'type="application/json" id', b"id")
        return b"<!--" + data[0] + b"-->" + false.replace(b"<script", b'<script type="application/json"')

    return DATA.sub(twice, page)


def _false_data_of_other_spelling(page: bytes) -> bytes:
    """Add a data block with an upper-case tag, which a search for the lower-case tag does not find."""
    false = DATA.search(page)
    assert false is not None
    other = false[0].replace(b"<script", b"<SCRIPT").replace(b'"cells":[', b'"cells":[9,')
    return page.replace(b"<header>", other + b"<header>", 1)


FORGERIES: dict[str, Callable[[bytes], bytes]] = {
    "a false note before the hidden true one": _false_note,
    "an extra cell in a shown row": _extra_cell,
    "a false table before the hidden true one": _false_table,
    "true data in a comment before false ones": _false_data,
    "false data of another spelling before the true ones": _false_data_of_other_spelling,
    "another title": lambda page: page.replace(b"<h1>Two views", b"<h1>True views"),
    "another title of the window": lambda page: page.replace(b"<title>Two", b"<title>True"),
    "another quotation": lambda page: page.replace(
        b"<blockquote><p>the small", b"<blockquote><p>the large", 1
    ),
    "other code": lambda page: page.replace(b"import bert_probe\n", b"import os\n", 1),
    "another script": lambda page: page.replace(b"<script>\n", b"<script>\nalert(1);", 1),
    "a further script": lambda page: page.replace(b"</main>", b"</main><script>alert(1)</script>", 1),
    "another style": lambda page: page.replace(b"<style>\n", b"<style>\ntd { display: none }\n", 1),
    "another policy": lambda page: page.replace(b"default-src 'none'", b"default-src *", 1),
    "a hidden article": lambda page: page.replace(b'<article id="view-2"', b'<article hidden id="view-2"', 1),
    "text after the end": lambda page: page + b"<p>More",
    "text before the start": lambda page: b"<p>More" + page,
    "a byte order mark": lambda page: b"\xef\xbb\xbf" + page,
    "other line ends": lambda page: page.replace(b"\n", b"\r\n"),
    "an unclosed comment": lambda page: page.replace(b"<header>", b"<!--<header>", 1),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("seal", [reseal, bytes], ids=["sealed", "unsealed"])
def test_forged_page_is_reported(
    forge: Callable[[bytes], bytes], seal: Callable[[bytes], bytes], page: bytes, verified: Verify
) -> None:
    forged = forge(page)
    assert forged != page
    assert forgeries.is_refused(lambda content: verified(content).differences, seal(forged))


def test_missing_row_is_reported_in_its_table(page: bytes, verified: Verify) -> None:
    row = re.search(rb"<tr><td class=n>2</td>.*?</tr>", page[page.index(b"<table data-view=0>") :])
    assert row is not None
    (difference,) = verified(reseal(page.replace(row[0], b"", 1))).differences
    assert (difference.view, difference.table) == (1, "table as shown")


def test_several_changed_cells_are_each_reported(page: bytes, verified: Verify) -> None:
    start = page.index(b"<table data-view=0>")
    changed = re.sub(rb"<td class=n>0\.", b"<td class=n>7.", page[start:], count=3)
    result = verified(reseal(page[:start] + changed)).differences
    assert [(difference.view, difference.table) for difference in result] == [(1, "table as shown")] * 3
    assert all(
        difference.stated.startswith("7.") and difference.recomputed.startswith("0.") for difference in result
    )


# ---------------------------------------------------------------- the data


def _renamed_model(stated: dict[str, Any]) -> None:
    for view in stated["views"]:
        view["provenance"]["model"] = "google/bert-large"


def _renamed_model_everywhere(stated: dict[str, Any]) -> None:
    for view in stated["views"]:
        view["provenance"]["model"] = view["view"]["models"][0]["name"] = "google/bert-large"


def _swapped_rows(stated: dict[str, Any]) -> None:
    for column in stated["views"][0]["table"]["columns"]:
        column["cells"][0], column["cells"][4] = column["cells"][4], column["cells"][0]


def _exactness_overstated(stated: dict[str, Any]) -> None:
    for bound in stated["views"][1]["tolerances"]["table"]:
        bound["tolerance"] /= 1000


def _further_fact(stated: dict[str, Any]) -> None:
    stated["views"][0]["provenance"]["reviewed by"] = {}


def _other_kind(stated: dict[str, Any]) -> None:
    column = next(column for column in stated["views"][0]["table"]["columns"] if column["kind"] == "integer")
    column["kind"], column["cells"] = "number", [float(cell) for cell in column["cells"]]


def _payload_with_a_tail(stated: dict[str, Any]) -> None:
    planes, length, letters = stated["views"][1]["payloads"][0]
    stated["views"][1]["payloads"][0] = [planes, length + 3, letters + "00000"]


DATA_FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "another model in the provenance": _renamed_model,
    "another model in all data": _renamed_model_everywhere,
    "rows in another order": _swapped_rows,
    "a smaller tolerance": _exactness_overstated,
    "a further fact": _further_fact,
    "whole numbers as measured ones": _other_kind,
    "a payload that only Python reads": _payload_with_a_tail,
    "no views": lambda stated: stated["views"].clear(),
    "a view less in the middle of its digests": lambda stated: stated["views"][0]["sha256"].clear(),
}


@pytest.mark.parametrize("forge", DATA_FORGERIES.values(), ids=DATA_FORGERIES)
def test_forged_data_are_reported(
    forge: Callable[[dict[str, Any]], None], stated: dict[str, Any], verified: Verify
) -> None:
    forge(stated)
    assert forgeries.is_refused(lambda content: verified(content).differences, render(stated))


def test_rows_in_another_order_are_reported_by_their_positions(
    stated: dict[str, Any], verified: Verify
) -> None:
    _swapped_rows(stated)
    result = [
        difference for difference in verified(render(stated)).differences if difference.table == "table"
    ]
    assert {
        (difference.table, difference.column, difference.stated, difference.recomputed)
        for difference in result
    } == {
        ("table", "position", "1", "5"),
        ("table", "position", "5", "1"),
    }


def test_another_version_is_reported_and_numbers_are_still_checked(
    stated: dict[str, Any], verified: Verify
) -> None:
    stated["made_with"]["bert_probe"] = "0.0.1"
    (difference,) = verified(render(stated)).differences
    assert (difference.finding, difference.stated) == (OTHER_VERSION, "0.0.1")
    column = next(column for column in stated["views"][0]["table"]["columns"] if column["kind"] == "number")
    column["cells"][1] += 1
    assert len(verified(render(stated)).differences) == 2


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_changed_checksum_of_a_row_or_column_is_reported(
    side: str, stated: dict[str, Any], verified: Verify
) -> None:
    """The changed checksum of a row or a column alone does not identify a cell."""
    stated["views"][0]["marks"][side][2] = "00000000"
    (difference,) = verified(render_page(stated, MAX_BYTES).encode()).differences
    assert (difference.column, difference.finding) == ("marks", CHANGED)


def test_authors_own_statements_pass(stated: dict[str, Any], verified: Verify) -> None:
    stated["title"] = "Another title"
    for view in stated["views"]:
        view["provenance"]["device"] = "cuda:0"
    assert verified(render(stated)).differences == ()


@pytest.mark.prove
def test_every_kind_of_leaf_is_covered(stated: dict[str, Any], verified: Verify) -> None:
    lots = random.Random(9)
    paths = {
        re.sub(r"\d+", "#", ".".join(map(str, path))): path for path in forgeries.forgeable_paths(stated)
    }
    missed = [
        name
        for name, path in paths.items()
        if not _is_refused_as_data(forgeries.replace_leaf(stated, path, lots), verified)
    ]
    assert missed == []
    assert len(paths) > 50


def _is_refused_as_data(forged: dict[str, Any], verified: Verify) -> bool:
    try:
        content = render(forged)
    except Exception:
        return True  # detected, because the forged data cannot be rendered
    return forgeries.is_refused(lambda content: verified(content).differences, content)


@pytest.mark.parametrize("mutate", [forgeries.mutate_bytes, forgeries.mutate_elements])
def test_random_mutations_of_a_page_are_reported(
    mutate: Callable[[bytes, random.Random], bytes], page: bytes, verified: Verify
) -> None:
    lots = random.Random(9)
    missed = 0
    for _ in range(examples(60)):
        forged = reseal(mutate(page, lots))
        missed += forged != page and not forgeries.is_refused(
            lambda content: verified(content).differences, forged
        )
    assert missed == 0


# ---------------------------------------------------------------- the ZIP


def _parquet(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[dict[str, bytes]], None]:
    def forge(files: dict[str, bytes]) -> None:
        table = pyarrow.parquet.read_table(io.BytesIO(files["1-heads/table.parquet"]))
        frame = change(table.to_pandas())
        changed = pyarrow.Table.from_pandas(frame, preserve_index=False)
        sink = io.BytesIO()
        pyarrow.parquet.write_table(changed.replace_schema_metadata(table.schema.metadata), sink)
        files["1-heads/table.parquet"] = sink.getvalue()

    return forge


def _swapped_names(frame: pd.DataFrame) -> pd.DataFrame:
    names = [*frame.columns]
    names[2], names[3] = names[3], names[2]
    return frame.set_axis(names, axis=1)


def _replaced(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def forge(files: dict[str, bytes]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return forge


def _forge_statistics(files: dict[str, bytes]) -> None:
    """Change the last statement of the largest entropy: the footer's, which DuckDB reads."""
    content = files["1-heads/table.parquet"]
    column = pyarrow.parquet.read_table(io.BytesIO(content))["entropy_bits"].to_pylist()
    before, _, after = content.rpartition(struct.pack("<d", max(column)))
    files["1-heads/table.parquet"] = before + struct.pack("<d", min(column)) + after


def _added(name: str, content: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: content})


ZIP_FORGERIES: dict[str, Callable[[dict[str, bytes]], None]] = {
    "a row more in table.parquet": _parquet(lambda frame: pd.concat([frame, frame[:1]])),
    "a row less in table.parquet": _parquet(lambda frame: frame[:-1]),
    "a column more in table.parquet": _parquet(lambda frame: frame.assign(more=1.0)),
    "swapped columns in table.parquet": _parquet(_swapped_names),
    "another order of rows in table.parquet": _parquet(lambda frame: frame[::-1]),
    "float16 in table.parquet": _parquet(lambda frame: frame.astype({"entropy_bits": "float16"})),
    "other statistics in table.parquet": _forge_statistics,
    "garbage in table.parquet": _added("1-heads/table.parquet", b"PAR1garbagePAR1"),
    "an empty table.parquet": _added("1-heads/table.parquet", b""),
    "another picture": _replaced("2-attention/picture.svg", b"</svg>", b"<text>9</text></svg>"),
    "a script in a picture": _replaced(
        "2-attention/picture.svg", b"</svg>", b"<script>alert(1)</script></svg>"
    ),
    "other code": _replaced("1-heads/code.py", b"import bert_probe", b"import os"),
    "another command": _replaced("1-heads/code.sh", b"bert-probe", b"rm -r"),
    "another note": _replaced("1-heads/note.txt", b"first", b"last"),
    "another view file": _replaced("2-attention/view.json", b"river", b"ocean"),
    "other provenance": _replaced("1-heads/provenance.json", b"river", b"ocean"),
    "a further file": _added("setup.py", b"import os"),
    "a further file of a view": _added("1-heads/README.txt", b"true"),
    "a file outside": _added("../evil.py", b"import os"),
    "a file at the root": _added("/etc/evil", b""),
    "a missing file": lambda files: files.__delitem__("1-heads/table.parquet"),
    "another title in the manifest": _replaced("manifest.json", b"Two views", b"True views"),
    "a further name in the manifest": _replaced(
        "manifest.json", b'{"bert_probe_report', b'{"a":1,"bert_probe_report'
    ),
}


# If several forgeries are detected by the same comparison, only one of them runs in `make test`.
IN_GATE = {
    "other statistics in table.parquet",
    "a row more in table.parquet",
    "garbage in table.parquet",
    "another picture",
    "other code",
    "a further file",
    "a file outside",
    "a missing file",
    "a further name in the manifest",
}


@pytest.mark.parametrize("name", prove_unless(IN_GATE, ZIP_FORGERIES))
def test_forged_zip_is_reported(name: str, archive: bytes, verified: Verify) -> None:
    files = unzip(archive)
    ZIP_FORGERIES[name](files)
    assert forgeries.is_refused(lambda content: verified(content).differences, zip_files(files))


def test_random_mutations_of_a_zip_are_reported(archive: bytes, verified: Verify) -> None:
    lots = random.Random(9)
    files = unzip(archive)
    missed = []
    for number in range(examples(15)):
        name = lots.choice([*files])
        content = forgeries.mutate_bytes(files[name], lots)
        forged = zip_files({**files, name: reseal(content) if name.endswith(".html") else content})
        if name == "manifest.json" or content == files[name]:
            continue
        if not forgeries.is_refused(lambda content: verified(content).differences, forged):
            missed.append((number, name))
    assert missed == []


def test_parquet_with_other_bytes_is_not_accepted(archive: bytes, verified: Verify) -> None:
    """Programs read different numbers from a forged file, for example with other offsets or types."""
    files = unzip(archive)
    content = files["1-heads/table.parquet"]
    sink = io.BytesIO()
    table = pyarrow.parquet.read_table(io.BytesIO(content))
    pyarrow.parquet.write_table(table, sink, compression="zstd", write_statistics=False)
    size = int.from_bytes(content[-8:-4], "little")
    gap = content[: -8 - size] + bytes(10) + content[-8 - size :]
    assert pyarrow.parquet.read_table(io.BytesIO(gap)).equals(table)
    for other in (sink.getvalue(), gap, content.replace(b"parquet-cpp-arrow", b"parquet-cpp-other")):
        verdict = verified(zip_files(files | {"1-heads/table.parquet": other}))
        assert [difference.row for difference in verdict.differences] == ["1-heads/table.parquet"]
        assert ["table.parquet has other bytes" in remark for remark in verdict.remarks] == [True]


@pytest.mark.parametrize("name", ["report.html", "report.htm", "report.zip.svg"])
def test_zip_with_the_name_of_a_page_is_refused(name: str, archive: bytes, tmp_path: Path) -> None:
    """A browser would show the first, uncompressed file of the ZIP as a page."""
    (tmp_path / name).write_bytes(archive)
    with pytest.raises(ReportError, match=r"is a ZIP, but its name does not end in \.zip"):
        read_report(tmp_path / name)


def test_color_indices_may_differ_by_one_only() -> None:
    own = (Tolerance("entries", 0.0, 1 / FACTOR), Tolerance("values", 1.0, 1e-7))
    stated = (Tolerance("entries", 0.0, 1.0), Tolerance("values", 1.0, 1.0))
    allowed = combine(own, stated)
    assert allowed["entries"] == 1
    assert allowed["values"] == MAX_STATED_FACTOR * own[1].allowed


def test_tolerances_do_not_depend_on_the_order_of_arrays() -> None:
    arrays = {name: np.ones(3, np.float32) for name in ("b", "a", "c")}
    reversed_arrays = dict(reversed(arrays.items()))
    assert of_arrays(arrays, arrays) == of_arrays(reversed_arrays, arrays)


def test_number_of_values_of_a_view_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "_MAX_LEAVES", 10)
    assert len(numbers.leaves({"a": [0] * 10})) == 10
    with pytest.raises(ReportError, match="more than 10 values outside its table"):
        numbers.leaves({"a": [0] * 11})
    with pytest.raises(ReportError, match=r"a name of more than 10,000 characters"):
        numbers.leaves({"a" * 10_001: [0]})
    monkeypatch.setattr(numbers, "_MAX_PATHS", 100)
    with pytest.raises(ReportError, match="values with long names"):
        numbers.leaves({"a" * 60: [0] * 2})


def test_model_elsewhere_is_checked_under_the_name_in_the_report(
    report: Report, tmp_path: Path, models: NamedModels
) -> None:
    checkpoint = models.open(ModelReference())
    elsewhere = replace(
        checkpoint, initial_description=replace(checkpoint.initial_description, name="/another/folder")
    )
    place = tmp_path / "report.html"
    place.write_text(report.html(), encoding="utf-8")
    other = NamedModels(forgeries.opener_of(elsewhere), _references=models._references)
    assert verify(read_report(place), other).differences == ()


def with_picture(
    stated: dict[str, Any], payload: bytes, sha256: str = "", place: tuple[int, int] = (1, 0)
) -> bytes:
    """Return the page of a report with another payload; by default, the first one of the second view."""
    view, index = stated["views"][place[0]], place[1]
    view["payloads"][index] = list(encode_text(payload))
    view["sha256"]["payloads"][index] = sha256 or digest(payload)
    return render(stated)


def picture(stated: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the description and arrays of the second view's picture, with forged values."""
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][1]["payloads"][0])))
    return described, {**arrays, "values": np.full_like(arrays["values"], 0.5)}


def test_picture_that_only_browsers_can_read_is_found(stated: dict[str, Any], verified: Verify) -> None:
    payload = pack(*picture(stated)) + b"    "
    verdict = verified(with_picture(stated, payload))
    assert [difference.stated for difference in verdict.differences] == ["cannot be read"]


def test_picture_that_is_too_long_is_found_with_any_digest(stated: dict[str, Any], verified: Verify) -> None:
    described, arrays = picture(stated)
    payload = pack(described, {**arrays, "more": np.zeros(300_000, np.uint8)})
    assert verified(with_picture(stated, payload, "cannot be read")).differences


@pytest.mark.parametrize(
    "forge",
    [
        lambda rows: {"rows": ["forged"] * len(rows), **{f"rows.{i}": row for i, row in enumerate(rows)}},
        lambda rows: {"rows": {str(i): row for i, row in enumerate(rows)}},
        lambda rows: {"rows": rows, "more": []},
        lambda rows: {"rows": rows, "revision": False},
    ],
    ids=["dotted names", "object for list", "empty list", "false for 0"],
)
def test_description_of_another_form_is_found(
    forge: Callable[[list[str]], dict[str, Any]], stated: dict[str, Any], verified: Verify
) -> None:
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][1]["payloads"][0])))
    payload = pack({**described, **forge(described["rows"])}, arrays)
    columns = [difference.column for difference in verified(with_picture(stated, payload)).differences]
    assert columns == ["names and types"]


def test_small_changes_of_queries_and_keys_that_add_up_are_found(minilm: Checkpoint, tmp_path: Path) -> None:
    """The browser computes attention from queries and keys, each of which may differ within its tolerance."""
    models = RememberedModels(forgeries.opener_of(minilm))
    view = ViewFile.of(bert_probe.Attention(2, 3).of(minilm.trace(" ".join([TEXT] * 12))))
    view = replace(view, drawn={"as": "lines", "layer": "3", "heads": "4", "head": "4"})
    report = Report.of(Draft("Lines", (DraftEntry(view),)), models)
    place = tmp_path / "report.html"
    place.write_text(report.html(), encoding="utf-8")
    assert verify(read_report(place), models).differences == ()

    stated = json.loads(json.dumps(report.stated))
    payload = decode_text(EmbeddedPayload(*stated["views"][0]["payloads"][2]))
    described, arrays = unpack(payload)
    allowed = {tolerance.of: tolerance.allowed for tolerance in report.items[0].tolerances.payloads[2]}
    # Shift a query and a key in the same direction, by the largest allowed difference of each element.
    before = attention_of_vectors(arrays, described["scaling"], 3, slice(None))
    query, key = np.unravel_index(np.abs(before - 0.5).argmin(), before.shape)
    queries, keys = arrays["queries"].copy(), arrays["keys"].copy()
    queries[3, query] += 0.99 * allowed["queries"] * np.sign(arrays["keys"][3, key])
    keys[3, key] += 0.99 * allowed["keys"] * np.sign(arrays["queries"][3, query])
    payload = pack(described, {**arrays, "queries": queries, "keys": keys})
    place.write_bytes(with_picture(stated, payload, place=(0, 2)))
    differences = verify(read_report(place), models).differences
    assert {difference.column for difference in differences} <= {ROWS, RECEIVED}
    assert f"4, {query + 1}" in {difference.row for difference in differences if difference.column == ROWS}


def test_small_changes_of_weights_that_add_up_are_found(models: NamedModels, verified: Verify) -> None:
    """A figure shows the sum of all other weights of a row."""
    trace = models.open(ModelReference()).trace(TEXT)
    view = replace(
        ViewFile.of(bert_probe.Attention(1).of(trace)),
        drawn={"as": "lines", "layer": "2", "heads": "1", "head": "1"},
    )
    report = Report.of(Draft("Lines", (DraftEntry(view),)), models)
    assert verified(report.html().encode()).differences == ()
    stated = json.loads(json.dumps(report.stated))
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][0]["payloads"][1])))
    (allowed,) = (item for item in report.items[0].tolerances.payloads[1] if item.of == "weights")
    payload = pack(described, {**arrays, "weights": arrays["weights"] + np.float32(0.9 * allowed.allowed)})
    columns = {
        difference.column for difference in verified(with_picture(stated, payload, place=(0, 1))).differences
    }
    assert ROWS in columns <= {ROWS, RECEIVED, "weights"}


def test_small_changes_of_weights_add_up_in_rows_and_columns() -> None:
    rows, columns = 40, 60
    arrays = {"weights": np.full((2, rows, columns), 1 / columns)}
    single, double = (PicturePayload({}, copy.deepcopy(arrays), None) for _ in range(2))
    single.arrays["weights"][0, :, 7] += 1e-4
    single.arrays["weights"][0, :, 8:] -= 1e-4 / (columns - 8)
    sums = single.compare_attention(double, lambda: None)
    assert sums.distances.shape == (2, rows)
    assert sums.received.shape == (2, columns)
    np.testing.assert_allclose(sums.distances, [[2e-4] * rows, [0] * rows], atol=1e-12)
    assert (sums.received - sums.other_received)[0, 7] == pytest.approx(rows * 1e-4)
    assert np.abs(sums.received - sums.other_received)[1].max() == 0


def test_attention_is_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    arrays = {name: generator.normal(size=(3, 11, 4)).astype(np.float32) for name in ("queries", "keys")}
    mask = np.tril(np.ones((11, 11), bool))
    first = PicturePayload({"scaling": 0.5}, {**arrays, "mask": np.packbits(mask, axis=1)}, None)
    second = PicturePayload({"scaling": 0.25}, first.arrays, None)
    expected = first.compare_attention(second, lambda: None)
    monkeypatch.setattr(numbers, "_BLOCK", 25)
    calls: list[None] = []
    actual = first.compare_attention(second, lambda: calls.append(None))
    assert len(calls) == 3 * 6
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-12)
    scores = np.einsum("hqd,hkd->hqk", *(arrays[name].astype(np.float64) for name in ("queries", "keys")))
    weights = [np.where(mask, np.exp(scale * scores), 0) for scale in (0.5, 0.25)]
    weights = [array / array.sum(axis=-1, keepdims=True) for array in weights]
    assert_exact(expected.distances, np.abs(weights[0] - weights[1]).sum(axis=2))
    assert_exact(expected.received, weights[0].sum(axis=1))


def test_each_measure_of_a_model_view_has_its_own_tolerance(models: NamedModels, verified: Verify) -> None:
    """Distances in tokens are large, so their tolerance would hide changes of shares."""
    trace = models.open(ModelReference()).trace(" ".join([TEXT] * 6))
    view = replace(ViewFile.of(bert_probe.Attention(1).of(trace)), drawn={"as": "model"})
    report = Report.of(Draft("All heads", (DraftEntry(view),)), models)
    assert verified(report.html().encode()).differences == ()
    stated = json.loads(json.dumps(report.stated))
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][0]["payloads"][0])))
    measures, values = described["measures"], arrays["numbers"].copy()
    scale = np.abs(values).max(axis=(1, 2))
    smallest, largest = scale.argmin(), scale.argmax()
    assert scale[largest] > 20 * scale[smallest]
    allowed = {item.of: item.allowed for item in report.items[0].tolerances.payloads[0]}
    assert {f"numbers of row {index + 1}" for index in range(len(measures))} <= allowed.keys()
    values[smallest, 0, 0] += 0.9 * allowed[f"numbers of row {largest + 1}"]
    payload = pack(described, {**arrays, "numbers": values})
    differences = verified(with_picture(stated, payload, place=(0, 0))).differences
    assert [(each.column, each.row) for each in differences] == [("numbers", f"{smallest + 1}, 1, 1")]


def test_masked_weights_must_be_zero(tmp_path: Path) -> None:
    """A head view draws and counts a line for each weight that is not 0, however small it is."""
    build("gpt2", tmp_path / "model")
    checkpoint = bert_probe.load(tmp_path / "model")
    models = RememberedModels(lambda _: checkpoint)
    view = ViewFile.of(bert_probe.Attention(1).of(checkpoint.trace(TEXT)))
    view = replace(view, drawn={"as": "lines", "layer": "2", "heads": "1", "head": "1"})
    report = Report.of(Draft("Lines", (DraftEntry(view),)), models)
    place = tmp_path / "report.html"
    place.write_text(report.html(), encoding="utf-8")
    assert verify(read_report(place), models).differences == ()
    stated = json.loads(json.dumps(report.stated))
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][0]["payloads"][1])))
    weights = arrays["weights"].copy()
    assert weights[0, 0, 3] == 0
    weights[0, 0, 3:6] = 1e-7, 1e-39, -3e-6
    payload = pack(described, {**arrays, "weights": weights})
    place.write_bytes(with_picture(stated, payload, place=(0, 1)))
    differences = verify(read_report(place), models).differences
    assert [(each.column, each.row) for each in differences] == [
        ("weights", "1, 1, 4"),
        ("weights", "1, 1, 5"),
        ("weights", "1, 1, 6"),
    ]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "change",
    [
        lambda described, arrays: pack({**described, "rows": None}, arrays),
        lambda described, arrays: pack(described, {k: v for k, v in arrays.items() if k != "values"}),
        lambda described, arrays: pack(described, arrays).replace(b"river", b"\xffiver", 1),
    ],
    ids=["no rows", "no values", "not UTF-8"],
)
def test_payload_that_cannot_be_drawn_is_found_in_a_zip(
    change: Callable[[dict[str, Any], dict[str, Any]], bytes],
    stated: dict[str, Any],
    archive: bytes,
    verified: Verify,
) -> None:
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][1]["payloads"][0])))
    forged = with_picture(stated, change(described, arrays))
    verdict = verified(zip_files({**unzip(archive), "report.html": forged}))
    assert {"names and types", "payload", "values"} & {each.column for each in verdict.differences}


def test_payload_that_differs_is_not_drawn(
    stated: dict[str, Any], archive: bytes, verified: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may describe a picture of any size."""
    drawn: list[bytes] = []

    def draw(picture: Page) -> dict[str, bytes]:
        drawn.extend(picture.payloads)
        return picture_file(picture)

    monkeypatch.setattr(zip_checks, "picture_file", draw)
    assert verified(archive).differences == ()
    described, arrays = unpack(decode_text(EmbeddedPayload(*stated["views"][1]["payloads"][0])))
    assert pack(described, arrays) in drawn
    forged = pack({**described, "size": 1e9}, arrays)
    drawn.clear()
    verdict = verified(zip_files({**unzip(archive), "report.html": with_picture(stated, forged)}))
    assert {each.table for each in verdict.differences} == {"picture 1"}
    assert drawn
    assert forged not in drawn


@pytest.mark.parametrize(
    "change",
    [
        {"device": "cpu \u202e, certified"},
        {"libraries": {"torch). Every number was reviewed (": "yes"}},
        {"libraries": "own"},
        {"tokens_dropped": False},
    ],
)
def test_text_in_place_of_devices_and_versions_is_found(
    change: dict[str, Any], stated: dict[str, Any], verified: Verify
) -> None:
    stated["views"][0]["provenance"] |= change
    assert verified(render(stated)).differences


@pytest.mark.parametrize(
    "change",
    [{"made_with": {"bert_probe": "0", "torch). All was reviewed (": "1"}}, {"title": "x" * 201}],
)
def test_page_with_other_text_in_its_header_is_refused(
    change: dict[str, Any], stated: dict[str, Any], verified: Verify
) -> None:
    with pytest.raises(ReportError):
        verified(render(stated | change))


def test_field_that_a_question_does_not_have_is_refused(stated: dict[str, Any], verified: Verify) -> None:
    stated["views"][1]["view"]["asked"]["temperature"] = "2"
    with pytest.raises(ReportError, match="temperature"):
        verified(render(stated))


def test_bytes_hidden_among_digests_are_found(stated: dict[str, Any], verified: Verify) -> None:
    stated["views"][0]["sha256"]["payloads"].append("hidden")
    assert [difference.column for difference in verified(render(stated)).differences] == ["SHA-256"]


@pytest.mark.parametrize(
    "field",
    [1, 2, 3, 4, 6],
    ids=["disk", "disk of the directory", "entries here", "entries", "offset"],
)
def test_zip_whose_end_describes_another_directory_is_refused(
    field: int, archive: bytes, verified: Verify
) -> None:
    end = struct.Struct("<4s4H2LH")
    fields = [*end.unpack(archive[-end.size :])]
    fields[field] += 1
    with pytest.raises(ReportError, match=r"central-directory record does not match|belong to no file"):
        verified(archive[: -end.size] + end.pack(*fields))


def test_image_is_compared_byte_by_byte() -> None:
    """Decoders differ in what they accept, so equal pixels in other bytes could be drawn differently."""
    contents = []
    for level in (0, 9):
        file = io.BytesIO()
        Image.new("RGB", (3, 2), "red").save(file, "PNG", compress_level=level)
        contents.append(b'<image href="data:image/png;base64,%s"/>' % base64.b64encode(file.getvalue()))
    assert is_same_picture(contents[0], contents[0])
    assert not is_same_picture(*contents)
    image, empty = contents[0], b'<image href=""/>'
    assert not is_same_picture(image + empty, empty + image)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (b'<path stroke="#4.01F53D8"/>', b'<path stroke="#4F53D8"/>'),
        (b'<svg xmlns="http://www.w3.org/2000.01/svg"/>', b'<svg xmlns="http://www.w3.org/2000/svg"/>'),
        (b'<g clip-path="url(#clip-1.01)"/>', b'<g clip-path="url(#clip-1)"/>'),
        (b'<text font-size="13.01"/>', b'<text font-size="13"/>'),
        (b'<text x1.01="2"/>', b'<text x1="2"/>'),
        (b'<text x="1" y="2"/>', b'<text y="1" x="2"/>'),
        (b'<text x="1" x="2"/>', b'<text x="1"/>'),
        (b"<text>1.01</text>", b"<text>1</text>"),
        (b"<text x='1.01'/>", b"<text x='1'/>"),
        (b'<path d="M1 2l3.5 4"/>', b'<path d="M1 2L3.5 4"/>'),
        # A browser does not draw an attribute whose number it cannot read.
        pytest.param(b'<g x="%s20.01"/>' % (b"0" * 60), b'<g x="20"/>', id="leading zeros"),
        pytest.param(b'<g x="20.0%s1"/>' % (b"0" * 60), b'<g x="20"/>', id="many decimals"),
        (b'<g x="020.01"/>', b'<g x="20"/>'),
        (b'<g x="20.00"/>', b'<g x="20"/>'),
        (b'<g x="0.1235"/>', b'<g x="0.1234"/>'),
        # A browser shows an error instead of a picture.
        (b'<svg  x="1"y="2"/>', b'<svg x="1" y="2"/>'),
        (b'<svgx="1"  y="2"/>', b'<svg x="1" y="2"/>'),
        (b'<path d="M1 2a5 5 0 0 1.01 5 5"/>', b'<path d="M1 2a5 5 0 0 1 5 5"/>'),
        (b'<g transform="scale(0.01)"/>', b'<g transform="scale(0.02)"/>'),
    ],
)
def test_numbers_outside_of_coordinates_are_exact(stated: bytes, expected: bytes) -> None:
    assert not is_same_picture(stated, expected)
    assert not is_same_picture(expected, stated)


@pytest.mark.parametrize(
    ("stated", "expected", "is_same"),
    [
        (b"149.8", b"149.81", True),
        (b"149.81", b"149.8", True),
        (b"150", b"149.99", True),
        (b"149.8", b"149.82", False),
        (b"149.8", b"149.9", False),
        (b"149", b"150", False),
        (b"149", b"149.", False),
        (b"", b"0.01", False),
        (b"0", b"0.01", True),
        (b"-0.01", b"0", True),
    ],
)
def test_trailing_zeros_of_numbers_are_omitted(stated: bytes, expected: bytes, is_same: bool) -> None:
    assert is_same_picture(b'<circle cx="%s"/>' % stated, b'<circle cx="%s"/>' % expected) == is_same
    assert not is_same_picture(b'<g opacity="#"/>', b'<g opacity="0.1234"/>')
    assert not is_same_picture(b'<g x="0.5000" opacity="#"/>', b'<g x="0.5000" opacity="0.1234"/>')


SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="80.5">'
    '<g transform="translate(20 54) rotate(-45)"><path d="M1.25 2h0L3-4.5" stroke="#4F53D8" opacity="0.5"/>'
    '<text x="12" y="-3.01" font-size="13">12.01 &amp; 3</text></g></svg>'
)


NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")


def move(text: str, start: int, to: int) -> str:
    """Move a character of a text to another place."""
    rest = text[:start] + text[start + 1 :]
    return rest[:to] + text[start : start + 1] + rest[to:]


def rewrite_number(text: str, which: int, template: str, change: int) -> str:
    """Write a number of a text in another way, or another number in its place."""
    found = [*NUMBER.finditer(text)]
    number = found[which % len(found)]
    written = template.format(number[0], round(float(number[0]) + change / 100, 2))
    return text[: number.start()] + written + text[number.end() :]


SPACES = [place for place, character in enumerate(SVG) if character == " "]
TEMPLATES = [
    "{1}",
    "{1:g}",
    "0{0}",
    "{0}0",
    "{0}.0",
    "{0}.01",
    "-{0}",
    "+{0}",
    "{0}e0",
    "{0} 0",
    "{0}.",
    "00{1}",
    "{1:.3f}",
]


@settings(max_examples=examples(10_000, gate=600))
@given(
    moves=st.lists(st.tuples(st.sampled_from(SPACES), st.integers(0, len(SVG))), max_size=1),
    rewritten=st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(TEMPLATES), st.integers(-2, 2)), max_size=2
    ),
)
def test_edited_picture_is_another_or_drawn_alike(
    moves: list[tuple[int, int]], rewritten: list[tuple[int, str, int]]
) -> None:
    edited = SVG
    for start, to in moves:
        edited = move(edited, start, to)
    for which, template, change in rewritten:
        edited = rewrite_number(edited, which, template, change)
    if not is_same_picture(edited.encode(), SVG.encode()):
        return
    elements, others = (list(ElementTree.fromstring(text).iter()) for text in (edited, SVG))
    for element, other in zip(elements, others, strict=True):
        assert (element.tag, element.text, element.tail) == (other.tag, other.text, other.tail)
        assert element.keys() == other.keys()
        for name in element.keys():  # noqa: SIM118 - an element is not a dict
            numbers = [
                re.findall(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?", each.get(name)) for each in (element, other)
            ]
            assert len(numbers[0]) == len(numbers[1])
            assert [*map(float, numbers[0])] == pytest.approx([*map(float, numbers[1])], abs=0.011)


def test_attributes_may_differ_by_rounding() -> None:
    stated = b'<path d="M3.1 4h0M5 6" opacity="0.5"/><g transform="translate(1 2.34) rotate(-45)"/>'
    expected = b'<path d="M3.11 4h0M5 5.99" opacity="0.51"/><g transform="translate(1 2.35) rotate(-45)"/>'
    assert is_same_picture(stated, expected)
