"""Test BertViz frames: their data, escaping of hostile tokens, limits, the store and the routes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from bert_probe.errors import SelectionError, TooLongError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.server import bertviz_frames
from bert_probe.server.bertviz_frames import FrameStore, head_view, model_view
from tests.helpers.exactness import assert_printed
from tests.helpers.gate import examples
from tests.helpers.server import answer_of
from tests.helpers.traces import HOSTILE_TOKENS, random_trace

DECIMALS = 6
"""Number of decimals of each weight."""
PLAIN = ("[CLS]", "one", "##two", "[SEP]")
FILTERS = (
    "All",
    "Sentence A -> Sentence A",
    "Sentence B -> Sentence B",
    "Sentence A -> Sentence B",
    "Sentence B -> Sentence A",
)

# BertViz does not close its template file, which causes a ResourceWarning.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*bertviz:ResourceWarning")


def html_of(frame: bertviz_frames.BertVizFrame, store: FrameStore) -> str:
    page = store.get(frame.url.removeprefix("/bertviz/"))
    assert page is not None
    return page.decode("utf-8")


def head_html(trace: Trace, layer: int = 0, heads: list[int] | None = None, dark: bool = False) -> str:
    store = FrameStore()
    return html_of(head_view(trace, layer, heads, dark, store), store)


def model_html(trace: Trace, dark: bool = False) -> str:
    store = FrameStore()
    return html_of(model_view(trace, dark, store), store)


def params(page: str) -> dict[str, Any]:
    """Return the data that BertViz's script reads, a JSON object on one line."""
    lines = re.findall(r"const params = (.*);$", page, re.M)
    assert len(lines) == 1
    read = json.loads(lines[0])
    return dict(read)


class Outline(HTMLParser):
    """Collects all tags of a page with their attributes, except random ids and nonces."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.comments: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value for name, value in attrs if name not in ("id", "nonce")}))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


@pytest.mark.parametrize("draw", [head_html, model_html])
def test_page_contains_exactly_the_tokens_and_weights(draw: Callable[[Trace], str]) -> None:
    trace = random_trace(HOSTILE_TOKENS)
    page = draw(trace)
    (data,) = params(page)["attention"]
    assert data["left_text"] == data["right_text"] == list(HOSTILE_TOKENS)
    expected = np.stack([trace.attention(layer) for layer in range(trace.layers)])
    assert_printed(data["attn"], expected, DECIMALS)
    assert expected.max() > 0.5, "small weights would make six decimals a weak test"


@pytest.mark.parametrize("draw", [head_html, model_html])
def test_hostile_tokens_do_not_change_the_markup(draw: Callable[[Trace], str]) -> None:
    hostile = draw(random_trace(HOSTILE_TOKENS))
    harmless = draw(random_trace(["x" * max(map(len, HOSTILE_TOKENS))] * len(HOSTILE_TOKENS)))
    assert Outline(hostile).tags == Outline(harmless).tags
    assert Outline(hostile).comments == []
    code = re.findall(r"const params = .*$", hostile, re.M)[0]
    assert not re.search(r"[<>&/\u2028\u2029]", code)
    assert code.isascii()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=()), max_size=12), min_size=1, max_size=5))
def test_any_text_survives_escaping(displays: list[str]) -> None:
    page = head_html(random_trace(displays, layers=1, heads=1))
    (data,) = params(page)["attention"]
    assert data["left_text"] == displays
    assert [tag[0] for tag in Outline(page).tags].count("script") == 5


def test_pair_has_filters_and_slices() -> None:
    trace = random_trace(("[CLS]", "a", "[SEP]", "b", "[SEP]"), second=3)
    for page in (head_html(trace), model_html(trace)):
        data = params(page)["attention"]
        assert tuple(part["name"] for part in data) == FILTERS
        assert data[3]["left_text"] == ["[CLS]", "a", "[SEP]"]
        assert data[3]["right_text"] == ["b", "[SEP]"]
        assert_printed(data[3]["attn"][2], trace.attention(2)[:, :3, 3:], DECIMALS)
        assert 'id="filter"' in page


def test_single_text_has_no_filter() -> None:
    assert 'id="filter"' not in head_html(random_trace(PLAIN))


def test_view_opens_at_the_requested_layer_and_heads() -> None:
    read = params(head_html(random_trace(PLAIN), layer=-1, heads=[3, 1]))
    assert (read["layer"], read["heads"], read["include_layers"]) == (2, [1, 3], [0, 1, 2])
    assert params(head_html(random_trace(PLAIN)))["heads"] is None


def test_trace_of_a_real_model(minilm: Checkpoint) -> None:
    trace = minilm.trace("It isn't <b>easy</b>.", "Why?")
    data = params(head_html(trace))["attention"]
    assert data[0]["left_text"] == [token.display for token in trace.tokens]
    assert data[2]["left_text"] == ["why", "?", "[SEP]"]
    assert_printed(data[0]["attn"][5], trace.attention(5), DECIMALS)


def test_page_loads_nothing_from_other_servers_and_contains_the_data_once() -> None:
    page = head_html(random_trace(PLAIN))
    scripts = [attributes for tag, attributes in Outline(page).tags if tag == "script"]
    sources = [attributes["src"] or "" for attributes in scripts if "src" in attributes]
    assert [re.sub(r"\?[0-9a-f]{12}$", "", source) for source in sources] == ["lib/jquery.js", "lib/d3.js"]
    assert page.count('"left_text"') == 1
    assert page.count("<script") == page.count("<script nonce=") == 5


def test_page_has_the_theme() -> None:
    trace = random_trace(PLAIN)
    assert "color-scheme: dark" in head_html(trace, dark=True)
    assert "color-scheme: light" in head_html(trace)
    assert params(model_html(trace, dark=True))["display_mode"] == "dark"
    assert params(model_html(trace))["display_mode"] == "light"


@pytest.mark.parametrize(("layer", "heads"), [(3, None), (0, [4]), (0, []), (-4, None)])
def test_unknown_layer_or_head_is_refused(layer: int, heads: list[int] | None) -> None:
    with pytest.raises(SelectionError):
        head_view(random_trace(PLAIN), layer, heads, dark=False)


def test_changed_template_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import bertviz

    class Other:
        data = "<script src=x></script><div></div><script>const params = {};</script>"

    monkeypatch.setattr(bertviz, "model_view", lambda **_: Other)
    with pytest.raises(RuntimeError, match=r"does not have the structure that BertViz 1\.4\.1"):
        model_view(random_trace(PLAIN), dark=False, store=FrameStore())


# Limits


def test_limits_equal_hand_computed_values() -> None:
    # At most 12 heads × 80² = 76,800 lines are drawn. For 16 heads, √(76,800 / 16) = 69.3 tokens.
    assert bertviz_frames.head_view_limit(layers=6, heads=12) == 80
    assert bertviz_frames.head_view_limit(layers=12, heads=12) == 80
    assert bertviz_frames.head_view_limit(layers=1, heads=16) == 69
    # At most 144 × 80² = 921,600 weights are sent. For the 384 heads of BERT large, √2,400 = 48.99 tokens.
    assert bertviz_frames.head_view_limit(layers=24, heads=16) == 48
    # At most 72 × 48² = 165,888 lines: √1,152 = 33.9 tokens for 144 heads, √432 = 20.8 for 384 heads.
    assert bertviz_frames.model_view_limit(layers=6, heads=12) == 48
    assert bertviz_frames.model_view_limit(layers=12, heads=12) == 33
    assert bertviz_frames.model_view_limit(layers=24, heads=16) == 20
    assert bertviz_frames.model_view_limit(layers=1, heads=1) == 48


def test_text_above_the_limit_is_refused() -> None:
    store = FrameStore()
    head_view(random_trace(["a"] * 80, layers=2, heads=12), 0, None, False, store)
    with pytest.raises(
        TooLongError, match=r"^The text has 81 tokens, .* limited to 80\. .* here 78,732.*heatmap"
    ):
        head_view(random_trace(["a"] * 81, layers=2, heads=12), 0, None, False, store)
    model_view(random_trace(["a"] * 33, layers=12, heads=12), False, store)
    with pytest.raises(
        TooLongError, match=r"^The text has 34 tokens, .* limited to 33\. .* here 166,464.*heatmap"
    ):
        model_view(random_trace(["a"] * 34, layers=12, heads=12), False, store)


def test_largest_frame_fits_the_store() -> None:
    """A text pair has the largest frame, which contains all weights twice: complete, and in four slices."""
    store = FrameStore()
    frame = head_view(random_trace(["a" * 20] * 80, layers=12, heads=12, second=40), 0, None, False, store)
    assert 10e6 < len(html_of(frame, store)) < bertviz_frames._STORE_BYTES / 2


# The store


def test_every_option_changes_the_url() -> None:
    store = FrameStore()
    trace, pair = random_trace(PLAIN), random_trace(PLAIN, second=2)
    same = [head_view(trace, 1, None, False, store).url for _ in range(2)]
    same.append(head_view(random_trace(PLAIN), 1, None, False, store).url)
    assert len(set(same)) == 1
    different = [
        head_view(trace, 2, None, False, store),
        head_view(trace, 1, [0], False, store),
        head_view(trace, 1, None, True, store),
        head_view(random_trace(PLAIN, seed=1), 1, None, False, store),
        head_view(random_trace(("[CLS]", "one", "##tw", "[SEP]")), 1, None, False, store),
        head_view(pair, 1, None, False, store),
        model_view(trace, False, store),
        model_view(trace, True, store),
    ]
    assert len({same[0], *(frame.url for frame in different)}) == 9


def test_frame_is_rendered_once_per_key() -> None:
    store, calls = FrameStore(), []
    for _ in range(2):
        store.put(b"key", lambda: calls.append(1) or b"page")  # type: ignore[func-returns-value]
    assert len(calls) == 1


def test_ids_differ_between_stores() -> None:
    assert FrameStore().put(b"key", lambda: b"") != FrameStore().put(b"key", lambda: b"")
    assert re.fullmatch(r"[0-9a-f]{40}", FrameStore().put(b"key", lambda: b""))


def test_store_drops_the_least_recently_used_frame() -> None:
    store = FrameStore(max_bytes=100)
    first, second = (store.put(key, lambda: b"x" * 40) for key in (b"1", b"2"))
    assert store.get(first) is not None  # The second frame is now the least recently used one.
    third = store.put(b"3", lambda: b"x" * 40)
    assert store.get(second) is None
    assert store.get(first) == store.get(third) == b"x" * 40


def test_store_is_thread_safe() -> None:
    store, wrong = FrameStore(max_bytes=2_000), []

    def work(start: int) -> None:
        for number in range(300):
            key = b"%d" % ((start + number) % 40)
            page = store.get(store.put(key, lambda key=key: key * 100))  # type: ignore[misc]
            if page not in (None, key * 100):
                wrong.append(page)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store._frames.currsize <= 2_000


# The routes


def get(path: str) -> tuple[int, dict[str, str], str]:
    """Return the status, headers and body of the response to a path."""
    status, headers, body = answer_of(Starlette(routes=bertviz_frames.routes()), path)
    return status, headers, body.decode()


def test_frame_has_its_own_policy_and_a_new_nonce() -> None:
    frame = head_view(random_trace(PLAIN), 0, None, False)
    nonces = set()
    for _ in range(2):
        status, headers, body = get(frame.url)
        assert status == 200
        assert headers["content-type"] == "text/html; charset=utf-8"
        assert headers["cache-control"] == "no-store"
        policy = headers["content-security-policy"]
        nonce = re.search(r"script-src 'nonce-([\w-]+)';", policy)
        assert nonce is not None
        assert policy.startswith("sandbox allow-scripts; default-src 'none'; ")
        assert "allow-same-origin" not in policy
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
        assert body.count(f'<script nonce="{nonce[1]}"') == body.count("<script") == 5
        nonces.add(nonce[1])
    assert len(nonces) == 2


def test_unknown_frame_is_404() -> None:
    status, headers, body = get("/bertviz/" + "0" * 40)
    assert status == 404
    assert headers["content-type"].startswith("text/plain")
    assert body == "This view has expired. Run the text again."


@pytest.mark.parametrize(
    ("name", "start"), [("d3", "// https://d3js.org v5.7.0"), ("jquery", "/*! jQuery v3.7.1")]
)
def test_libraries_are_read_from_installed_packages(name: str, start: str) -> None:
    status, headers, body = get(f"/bertviz/lib/{name}.js")
    assert status == 200
    assert headers["content-type"] == "text/javascript; charset=utf-8"
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert body.startswith(start)


@pytest.mark.parametrize("name", ["x", "..%2f..%2fapp", "d3.min"])
def test_unknown_library_is_404(name: str) -> None:
    assert get(f"/bertviz/lib/{name}.js")[0] == 404
