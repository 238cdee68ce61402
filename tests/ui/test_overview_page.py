"""Test the Overview page: its cards show the library's highlights, and its links work."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe.analyses.highlights.highlights import (
    HighlightsResult,
    ReferenceNumbers,
    find_highlights,
    measure_references,
    reference_forms,
)
from bert_probe.core.provenance import InputRecord
from bert_probe.core.snippets import url_parameters
from bert_probe.model.progress import no_progress
from bert_probe.runtime import shared_cache
from bert_probe.server import asgi
from bert_probe.ui import jobs, overview, state, workbench
from tests.helpers.pages import MARKDOWN, displayed_view, error_text, open_page, url_params

TEXT = "The dog and the cat saw the unhappiest wolpertinger, and the dog ran to the old boat."


def sentences(app: AppTest) -> list[str]:
    """Return the sentences of the cards."""
    return [element.value for element in app.markdown if element.value.endswith(r"\.")]


def links(app: AppTest) -> list[tuple[str, dict[str, str]]]:
    """Return the page and the URL parameters of each card's link."""
    protos: list[Any] = [element.proto for element in app.get("page_link")]
    return [(proto.page, dict(parse_qsl(proto.query_string))) for proto in protos]


def expected(text: str, b: str = "") -> HighlightsResult:
    """Return the library's highlights of a text (and of a second text `b`), with the page's references."""
    checkpoint = shared_cache.open_checkpoint("", "")
    traces = shared_cache.traces(checkpoint, [(part, None) for part in (text, b) if part], False)
    first, *more = [
        shared_cache.answers.of(measure_references, checkpoint, form, progress=no_progress)
        for form in reference_forms(*traces)
    ]
    for extra in more:
        first |= extra
    return find_highlights(*traces).ranked(first)


def test_cards_match_findings_of_library_in_order() -> None:
    app = open_page("overview", a=TEXT)
    assert not app.exception
    findings = expected(TEXT).findings
    assert sentences(app) == [state.escape(finding.said, 1_000) for finding in findings]
    places = [
        element.value.partition(". ")[0] for element in app.caption if "igher than in " in element.value
    ]
    assert [f"{place}." for place in places] == [finding.place for finding in findings]
    assert [page for page, _ in links(app)] == [finding.page for finding in findings]
    assert len(app.get("image")) == len(findings)


def test_links_contain_page_and_texts() -> None:
    app = open_page("overview", a=TEXT, b="The dog ran home.")
    result = expected(TEXT, "The dog ran home.")
    for (page, parameters), finding in zip(links(app), result.findings, strict=True):
        assert page in asgi.PAGES
        assert state.text_parameters(parameters) == {"a": TEXT, "b": "The dog ran home."}
        assert finding.choices.items() <= parameters.items()
        # The library's link to the page has the same parameters.
        path, _, query = result.link(finding).partition("?")
        assert path == f"/{page}"
        assert parameters.items() >= dict(parse_qsl(query)).items()


def test_command_line_link_opens_view_with_its_text() -> None:
    result = expected(TEXT)
    finding = next(
        candidate for candidate in result.candidates if candidate.kind.name == "word-to-word attention"
    )
    page, _, query = result.link(finding).removeprefix("/").partition("?")
    app = open_page(page, **dict(parse_qsl(query)))
    assert app.text_area(key="draft_a").value == TEXT
    view = displayed_view(app)
    assert {"layer": str(view.layer), "head": str(view.series[0] + 1)}.items() <= finding.choices.items()
    assert view.words
    assert f"{view.pins.side}.{view.pins.units[0]}" == finding.choices["pins"]


def test_url_of_pair_and_truncated_text_reproduces_page() -> None:
    checkpoint = shared_cache.open_checkpoint("", "")
    for trace, request in (
        (checkpoint.trace("a dog", "a cat"), workbench.Request("a dog", "a cat", "pair")),
        (checkpoint.trace("dog " * 600, truncate=True), workbench.Request("dog " * 600, truncate=True)),
    ):
        parameters = url_parameters(InputRecord.of(trace))
        assert parameters is not None
        cut = parameters.pop("truncate", "0")
        assert workbench.Request(**parameters, truncate=cut == "1") == request


def test_followed_link_applies_its_selection_and_keeps_url() -> None:
    app = open_page(a=TEXT, layer="2", words="1", pins="query.3", lines="0.1", show="table")
    app.switch_page("../../pages/similarity.py").run()
    app.slider(key="vector_layer").set_value(3).run()
    app.switch_page("../../pages/overview.py").run()
    assert url_params(app) == {"a": TEXT, "vector_layer": "3"}, "no parameter of attention"
    for page_name in ("attention", "similarity"):
        parameters = next(query for page, query in links(app) if page == page_name)
        app.query_params.clear()
        for name, value in parameters.items():
            app.query_params[name] = value
        app.switch_page(f"../../pages/{page_name}.py").run()
        assert not app.exception
        assert url_params(app) == parameters, page_name
        if page_name == "attention":
            view = displayed_view(app)
            assert (str(view.layer), view.options.step) == (parameters["layer"], None)
            assert view.words == (parameters.get("words") == "1")
            assert app.session_state["address"]["vector_layer"] == "3"
            app.switch_page("../../pages/overview.py").run()
        else:
            assert app.slider(key="vector_layer").value == 6


def test_findings_are_shown_before_reference_numbers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    measured = measure_references

    def slow(*args: Any, **more: Any) -> ReferenceNumbers:
        may_go_on.wait(60)
        return measured(*args, **more)

    monkeypatch.setattr(overview, "measure_references", slow)
    monkeypatch.setattr(jobs, "PATIENCE", 0.0)
    app = open_page("overview", a=TEXT)
    first = find_highlights(
        shared_cache.traces(shared_cache.open_checkpoint("", ""), [(TEXT, None)], False)[0]
    )
    assert sentences(app) == [state.escape(finding.said, 1_000) for finding in first.findings]
    assert not [element for element in app.caption if "igher than in " in element.value]
    assert "Cancel" in [button.label for button in app.button]
    assert not app.get("download_button"), "files contain percentiles"
    may_go_on.set()
    monkeypatch.setattr(jobs, "PATIENCE", 60.0)
    app.run()
    assert sentences(app) == [state.escape(finding.said, 1_000) for finding in expected(TEXT).findings]
    assert [button.label for button in app.get("download_button")][:2] == ["CSV", "JSON"]


@pytest.mark.parametrize("text", ["\n".join(MARKDOWN), "."])
def test_any_text_has_cards_without_markdown_rendering(text: str) -> None:
    app = open_page("overview", a=text, b=text)
    assert not app.exception
    assert not error_text(app)
    content = "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
    assert "<img" not in content
    assert ":red[" not in content
    assert "](http" not in content


def test_navigation_has_at_most_seven_entries() -> None:
    entries = [*asgi.SECTIONS.get("", ()), *(name for name in asgi.SECTIONS if name)]
    assert len(entries) <= 7
    assert entries[0] == "overview" == asgi.FRONT_PAGE
