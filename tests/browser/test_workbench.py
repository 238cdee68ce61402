"""Test the form in a real browser: text that was typed but not run is marked and persists across pages."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.helpers.browser import (
    App,
    find_violations,
    open_page,
    visit,
    wait_until_ready,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.gate import prove_unless

pytestmark = pytest.mark.browser

TEXT = "we left the ground --> </textarea> </style> & 'one'"
NEXT_TO_RUN = '[data-testid="stSidebar"] .not-run[role="status"]'
ON_PAGE = '[data-testid="stMain"] .not-run-page[role="status"]'


def expect_mark(page: Page, is_shown: bool, button: str = NEXT_TO_RUN) -> None:
    """Expect that "Not run yet" appears below the button and over the page, or in neither place."""
    sentence = "Not run yet: this page still shows the results of the last run."
    for place, text in ((button, "Not run yet"), (ON_PAGE, sentence)):
        expect(page.locator(place)).to_have_text(text if is_shown else "")


HEADING_TOPS = """() => {
  window.headingTops = new Set();
  const look = () => {
    const heading = document.querySelector("h1");
    if (heading) window.headingTops.add(heading.getBoundingClientRect().top);
    requestAnimationFrame(look);
  };
  look();
}"""


@pytest.mark.prove
def test_heading_does_not_move_while_the_page_loads(app: App, page: Page) -> None:
    page.add_init_script(f"({HEADING_TOPS})()")
    # The first time, the model takes longer to open than the browser needs to load the page's elements.
    for _ in range(2):
        visit(page, f"{app.origin}/tokens?a=we")
        wait_until_ready(page)
    tops = page.evaluate("[...window.headingTops]")
    assert len(tops) == 1, f"The heading moved: {tops}"


@pytest.mark.parametrize("name", prove_unless({"attention"}, ["tokens", "attention"]))
def test_text_that_was_typed_but_not_run_is_marked(app: App, page: Page, name: str) -> None:
    visit(page, f"{app.origin}/{name}?a=we")
    text_box = page.get_by_role("textbox", name="Sentence A")
    controls = page.get_by_role("heading", level=1), page.get_by_role("button", name="Run")
    expect_mark(page, False)
    wait_until_ready(page)
    places = [control.bounding_box() for control in controls]
    text_box.press("End")
    text_box.press("x")
    expect_mark(page, True)
    assert [control.bounding_box() for control in controls] == places
    assert find_violations(page, ["color-contrast"]) == []
    text_box.press("Backspace")
    expect_mark(page, False)
    text_box.fill(TEXT)
    expect_mark(page, True)
    text_box.press("Control+Enter")
    expect_mark(page, False)
    wait_until_settled(page)
    text_box.fill("we left")
    expect_mark(page, True)
    page.get_by_role("button", name="Run").click()
    expect_mark(page, False)
    wait_until_settled(page)
    expect_mark(page, False)


@pytest.mark.prove
def test_fields_that_load_after_another_run_contain_the_texts_of_the_link(app: App, page: Page) -> None:
    """The user may click before the browser has loaded the code of the text fields."""
    delayed: list[Route] = []
    page.route("**/TextArea*.js", lambda route: delayed.append(route))
    page.goto(f"{app.origin}/compare?a=the cup was full&b=the cup was empty")
    expect(page.get_by_role("heading", name="Which heads changed?")).to_be_visible(timeout=120_000)
    page.get_by_role("radio", name="Jensen–Shannon").click()
    expect(page).to_have_url(re.compile("jensen"), timeout=60_000)
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
    assert delayed
    for route in delayed:
        route.continue_()
    expect(page.get_by_role("textbox", name="Sentence A")).to_have_value("the cup was full")
    expect(page.get_by_role("textbox", name="Sentence B")).to_have_value("the cup was empty")
    expect_mark(page, False)


@pytest.mark.prove
def test_click_on_expander_during_change_of_page_opens_it(app: App, page: Page) -> None:
    """The form has more fields on Overview than on Train, so the expander moves during the click."""
    visit(page, f"{app.origin}/train")
    expander = page.get_by_test_id("stExpander").filter(has_text="Model and length")
    summary, details = expander.locator("summary"), expander.locator("details")
    before = summary.bounding_box()
    assert before is not None
    page.mouse.move(before["x"] + 60, before["y"] + 15)
    page.mouse.down()
    page.get_by_test_id("stTopNavLink").filter(has_text="Overview").evaluate("link => link.click()")
    expect(page.get_by_role("textbox", name="Sentence A")).to_be_visible()
    page.mouse.up()
    expect(details).to_have_attribute("open", "")
    after = summary.bounding_box()
    assert after is not None
    assert after["y"] > before["y"] + 100
    page.mouse.move(after["x"] + 60, after["y"] + 15)
    page.mouse.down()
    page.mouse.move(after["x"] + 60, after["y"] - 100)  # Dragging must not toggle the expander.
    page.mouse.up()
    page.wait_for_timeout(300)
    expect(details).to_have_attribute("open", "")


MARKS = """() => {
  window.marks = new Set();
  new MutationObserver(() => {
    for (const mark of document.querySelectorAll(".not-run")) window.marks.add(mark.textContent);
  }).observe(document, { childList: true, subtree: true, characterData: true });
}"""


def test_button_does_not_move_while_its_fields_load_and_is_clicked_if_it_moves(
    app: App, new_page: Callable[..., Page]
) -> None:
    """A phone loads the code of the text fields only when the sidebar opens."""
    delayed: list[Route] = []
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.add_init_script(f"({MARKS})()")
    page.route("**/TextArea*.js", lambda route: delayed.append(route))
    visit(page, f"{app.origin}/tokens?a=we")
    page.get_by_test_id("stExpandSidebarButton").tap()
    run, text_box = page.get_by_role("button", name="Run"), page.get_by_role("textbox", name="Sentence A")
    expect(page.get_by_role("radio", name="Separate text")).to_be_visible()
    wait_until_still(page)
    assert delayed
    before = run.bounding_box()
    for route in delayed:
        route.continue_()
    expect(text_box).to_have_value("we")
    wait_until_still(page)
    assert run.bounding_box() == before
    assert page.evaluate("[...window.marks]") == [""]

    text_box.fill("we left")
    run.hover()
    page.mouse.down()
    run.evaluate("button => { button.style.translate = '0 -200px'; }")
    page.mouse.up()
    expect(page).to_have_url(re.compile("[?]a=we[+]left"))


@pytest.mark.prove
def test_open_page_is_marked_in_the_menu(app: App, page: Page) -> None:
    menus = page.locator('[data-testid="stTopNavSection"][aria-current]')
    visit(page, f"{app.origin}/tokens")
    expect(menus).to_have_text(["Text"])
    open_page(page, "Heads")
    expect(menus).to_have_text(["Attention"])
    open_page(page, "Overview")
    expect(menus).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    button = page.get_by_test_id("stExpandSidebarButton")
    expect(button).to_be_visible()
    assert button.evaluate("node => getComputedStyle(node, '::after').content") == '"Menu"'


@pytest.mark.prove
def test_every_field_of_the_form_can_be_marked(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/tokens?a=we&b=left")
    page.get_by_role("radio", name="Second segment").click()
    expect_mark(page, True)
    page.get_by_role("radio", name="Separate text").click()
    expect_mark(page, False)
    page.get_by_text("Model and length").click()
    page.get_by_role("textbox", name="Revision").fill("main")
    expect_mark(page, True)
    page.get_by_role("textbox", name="Revision").fill("")
    expect_mark(page, False)
    page.get_by_text("Truncate long texts").click()
    expect_mark(page, True)
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("menuitem", name="Paraphrase: different words, same meaning").click()
    text_box = page.get_by_role("textbox", name="Sentence A")
    expect(text_box).to_have_value("President greets the press in Chicago")
    expect_mark(page, False)


@pytest.mark.prove
def test_sentences_that_were_typed_but_not_compared_are_marked(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/sentences")
    button = '[data-testid="stMain"] .not-run:not(.not-run-page)'
    text_box = page.get_by_role("textbox", name="Sentences, one per line")
    expect_mark(page, False, button)
    text_box.fill("we left\nwe stayed")
    expect_mark(page, True, button)
    page.get_by_role("button", name="Compare", exact=True).click()
    expect_mark(page, False, button)
    text_box.fill("")
    expect_mark(page, True, button)
    open_page(page, "Tokens")
    open_page(page, "Sentences")  # The browser draws the field again.
    expect(text_box).to_have_value("")
    expect_mark(page, True, button)


@pytest.mark.prove
def test_typed_text_is_kept_on_pages_that_do_not_read_it(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/tokens?a=we")
    text_box, run = page.get_by_role("textbox", name="Sentence A"), page.get_by_role("button", name="Run")
    text_box.fill("typed, but not run")
    note = page.get_by_test_id("stSidebar").get_by_text(
        "Sentences A and B remain available on the other pages."
    )
    open_page(page, "Train")
    expect(note).to_be_visible()
    expect(text_box).to_be_hidden()
    expect(page.get_by_role("button", name="Examples")).to_be_hidden()
    # On this page, the form has only the model's fields, which are collapsed.
    expect(run).to_be_hidden()
    expect_mark(page, False)
    open_page(page, "Report")
    expect(note).to_be_visible()
    expect(run).to_be_hidden()
    open_page(page, "Tokens")
    expect(text_box).to_have_value("typed, but not run")
    expect(note).to_be_hidden()
    expect_mark(page, True)
    expect(page.get_by_test_id("stMain").get_by_text("typed", exact=True)).to_have_count(0)


@pytest.mark.parametrize("is_phone", prove_unless({True}, [True, False]))
def test_sidebar_closes_after_run_only_on_phone(
    app: App, new_page: Callable[..., Page], is_phone: bool
) -> None:
    page = visit(
        new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        if is_phone
        else new_page(),
        f"{app.origin}/tokens",
    )
    sidebar = page.get_by_test_id("stSidebar")
    if is_phone:
        page.get_by_test_id("stExpandSidebarButton").tap()
    expect(sidebar).to_have_attribute("data-collapsed", "false")
    wait_until_still(page)  # The sidebar slides in.
    page.get_by_role("textbox", name="Sentence A").fill("we left the ground")
    page.get_by_role("button", name="Run").click()
    # The URL tells whether the click or only its result is missing.
    expect(page).to_have_url(re.compile(r"[?&]a=we\+?(%20)?left"))
    expect(page.get_by_role("listitem", name="ground, id")).to_have_count(1)
    wait_until_settled(page)
    expect(sidebar).to_have_attribute("data-collapsed", str(is_phone).lower())
