"""The text form follows texts that the server sets."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from bert_probe.model.sources import BUILT_IN


def page() -> None:
    from dataclasses import replace

    import streamlit as st

    from bert_probe.ui import workbench

    def ask() -> None:
        workbench.submit(replace(workbench.request(), a="set by a button"))

    def arrive() -> None:
        # What a request's widget states do before the script runs; the test runner sends none for a form.
        st.session_state["draft_a"] = "from the address"

    def ask_model() -> None:
        workbench.submit(replace(workbench.request(), model="another/model"))

    st.button("Set", on_click=ask)
    st.button("Another model", on_click=ask_model)
    st.button("Built-in model", on_click=workbench._use_built_in)
    st.button("Outdated request", on_click=arrive)
    st.button("Another request")
    workbench.draw_sidebar()
    st.text(workbench.request().a)
    workbench.confirm_drafts()


def click(app: AppTest, label: str) -> str:
    """Return the text in the form after a click."""
    next(button for button in app.button if button.label == label).click().run()
    return str(app.text_area(key="draft_a").value)


def test_stale_request_does_not_undo_form_update() -> None:
    app = AppTest.from_function(page)
    app.query_params["a"] = "from the address"
    app.run()
    assert app.text_area(key="draft_a").value == "from the address"
    assert click(app, "Set") == app.text[0].value == "set by a button"
    assert click(app, "Outdated request") == "set by a button"
    assert click(app, "Outdated request") == "set by a button"
    assert click(app, "Another request") == "set by a button"
    assert click(app, "Outdated request") == "from the address", "the browser had confirmed the update"


def test_immediately_submitted_text_replaces_update() -> None:
    app = AppTest.from_function(page)
    app.query_params["a"] = "from the address"
    app.run()
    click(app, "Set")
    app.text_area(key="draft_a").set_value("from the address")
    assert click(app, "Run") == app.text[0].value == "from the address"


def test_built_in_model_replaces_model_set_before() -> None:
    app = AppTest.from_function(page)
    app.run()
    click(app, "Another model")
    assert app.selectbox(key="draft_model").value == "another/model"
    click(app, "Built-in model")
    assert app.selectbox(key="draft_model").value == BUILT_IN
    click(app, "Another request")
    assert app.selectbox(key="draft_model").value == BUILT_IN
