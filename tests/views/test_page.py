"""Test SVG and PNG files without a browser: content, escaping of user text, and errors."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import bert_probe
from bert_probe.errors import ExportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.notebook import Frame
from bert_probe.views import palette
from bert_probe.views.page import Page, _png
from tests.helpers.command_line import bert_probe as command
from tests.helpers.framed import extract_payloads
from tests.helpers.gate import prove_unless
from tests.helpers.traces import HOSTILE_TOKENS

TEXT = "we had left the ground"


def texts_of(svg: str) -> list[str]:
    """Return the visible texts of an SVG."""
    return [
        "".join(element.itertext())
        for element in ElementTree.fromstring(svg).iter()
        if element.tag.endswith("}text")
    ]


def lines_in(svg: str) -> int:
    """Return the number of lines in an SVG, in which one path contains all lines of the same opacity."""
    return sum(path.count("M") for path in re.findall(r'<path d="([^"]*)"', svg))


def pixels_of(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def numbered(svg: str) -> list[float]:
    """Return the numbers with two decimals among the texts of an SVG."""
    return [float(text.replace("−", "-")) for text in texts_of(svg) if re.fullmatch(r"−?\d\.\d\d", text)]


def test_heatmap_has_a_number_in_every_cell(minilm: Checkpoint) -> None:
    result = bert_probe.Attention(2, 3).of(minilm.trace(TEXT))
    svg = result.show().page.svg()
    cells = numbered(svg)[: result.weights.size]  # The remaining numbers are the legend's labels.
    np.testing.assert_allclose(cells, result.weights.ravel(), atol=0.00501, rtol=0)
    assert "Attention in layer 3, head 4" in texts_of(svg)


def test_head_view_has_a_line_per_weight_and_pinned_numbers(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    svg = trace.head_view(3, 8, pins=[2]).page.svg()
    weights = trace.attention(3, 8)[2]
    assert sorted(numbered(svg)) == sorted(round(float(weight), 2) for weight in weights if weight >= 0.005)
    plain = trace.head_view(3, 8).page.svg()
    strongest = np.sort(trace.attention(3, 8), axis=None)[::-1]
    half = int(np.searchsorted(np.cumsum(strongest, dtype=np.float64), strongest.sum() / 2)) + 1
    assert lines_in(plain) == half, "as many of the strongest lines as carry half of the weight"
    assert "Attention in layer 4, head 9" in texts_of(plain)


def test_queries_and_keys_give_the_same_picture_as_weights(minilm: Checkpoint) -> None:
    page = minilm.trace("we had left the ground and the river before we knew it " * 7).head_view(3, 8).page
    numbers, vectors = page.svg(), Page(page.component, page.payloads[3:4], page.title).svg()
    # Lines may differ slightly, because a value may be on the boundary between two line widths.
    words = [re.findall(r"<text.*?</text>", svg) for svg in (numbers, vectors)]
    assert words[0] == words[1]
    lines = lines_in(numbers), lines_in(vectors)
    assert lines[0] == pytest.approx(lines[1], abs=2)


def test_steps_are_stacked(minilm: Checkpoint) -> None:
    result = bert_probe.AttentionSteps(2, 3).of(minilm.trace(TEXT))
    texts = texts_of(result.show().page.svg())
    captions = [
        "The query vector and the key vector",
        "The head's output: returned by the model, and computed step by step",
    ]
    assert [texts.count(caption) for caption in captions] == [1, 1]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("show", [lambda trace: trace.head_view(), lambda trace: trace.model_view()])
def test_png_is_the_svg_at_twice_the_size(
    minilm: Checkpoint, show: Callable[[bert_probe.Trace], Frame]
) -> None:
    page = show(minilm.trace(TEXT)).page
    root = ElementTree.fromstring(page.svg())
    pixels = pixels_of(page.png())
    assert pixels.shape[:2] == (2 * int(root.attrib["height"]), 2 * int(root.attrib["width"]))
    paper = np.array([int(palette.PAPER_LIGHT[i : i + 2], 16) for i in (1, 3, 5)])
    assert (pixels[1, 1] == paper).all()
    assert 0.005 < (np.abs(pixels.astype(int) - paper).max(axis=2) > 40).mean() < 0.7, (
        "neither blank nor black"
    )


def test_user_text_is_escaped(tmp_path: Path) -> None:
    tokens = [token for token in HOSTILE_TOKENS if token.isprintable()]
    hostile = bert_probe.from_attention(np.full((2, 2, len(tokens), len(tokens)), 0.1), tokens)
    svg = hostile.head_view().save(tmp_path / "view.svg").read_text(encoding="utf-8")
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert names <= {"svg", "title", "g", "rect", "path", "text"}
    assert hostile.head_view().page.png()[:4] == b"\x89PNG"


@pytest.mark.parametrize("png", prove_unless({False}, [False, True]))
def test_large_matrix_is_refused_as_svg_and_accepted_as_png(png: bool) -> None:
    tokens = [f"w{i}" for i in range(201)]
    external = bert_probe.from_attention(np.full((1, 1, 201, 201), 1 / 201), tokens)
    page = bert_probe.Attention(0, 0).of(external).show().page
    with pytest.raises(ExportError, match=r"40,401 cells, but an SVG is limited to 40,000\. Save a PNG"):
        page.svg()
    assert not png or page.png()[:4] == b"\x89PNG"


def test_command_line_writes_pictures(minilm: Checkpoint, tmp_path: Path) -> None:
    def drawn(name: str, *options: str) -> bytes:
        ended = command("attention", TEXT, *options, "--out", str(tmp_path / name), built_in=minilm)
        assert (ended.status, ended.out) == (0, b""), ended.err
        return (tmp_path / name).read_bytes()

    trace = minilm.trace(TEXT)
    choice = ("--layer", "4", "--head", "9")
    assert drawn("lines.svg", *choice).decode() == trace.head_view(3, 8).page.svg()
    assert "heads 2, 9" in drawn("two.svg", "--layer", "4", "--head", "2,9").decode()
    result = bert_probe.Attention(3, 8).of(trace)
    assert drawn("map.svg", *choice, "--picture", "heatmap").decode() == result.show().page.svg()
    assert drawn("model.png", "--picture", "model")[:4] == b"\x89PNG"
    page = drawn("lines.html", *choice).decode()
    assert len(extract_payloads(page)) == trace.layers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attention", TEXT, "--out", "a.gif"), "does not end in .html, .htm, .svg, .png, .csv"),
        (
            ("attention", TEXT, "--picture", "lines"),
            "--picture requires --out FILE.html, .svg or .png. Add --out, or omit --picture.",
        ),
        (
            ("attention", TEXT, "--layout", "long", "--out", "a.svg"),
            "--layout long applies to tables only. Omit --layout, or write a table: --out FILE.csv.",
        ),
        (
            ("attention", TEXT, "--renormalize", "--picture", "lines", "--out", "a.svg"),
            "--renormalize applies to the heatmap only",
        ),
        (
            ("attention", TEXT, "--measure", "rollout", "--head", "2", "--out", "a.svg"),
            "not for individual heads",
        ),
        (
            ("attention", TEXT, "--csv-safe", "--out", "a.svg"),
            "--csv-safe applies to CSV files only, not to a.svg. Omit --csv-safe.",
        ),
        (
            ("pooler", TEXT, "--out", "a.svg"),
            "The result of pooler has no figure. Choose another extension for --out",
        ),
    ],
)
def test_invalid_picture_is_an_error_message(
    minilm: Checkpoint,
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in command(*arguments, built_in=minilm).refusal
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("width", "height", "colors", "mode"),
    [(1, 1, 1, "P"), (3, 2, 6, "P"), (300, 240, 256, "P"), (300, 240, 257, "RGB"), (65_534, 1, 2, "P")],
)
def test_images_in_svg_files_have_all_pixels(width: int, height: int, colors: int, mode: str) -> None:
    random = np.random.default_rng(0)
    palette_of = random.permutation(1 << 16)[:colors]
    codes = palette_of[np.arange(width * height) % colors]
    pixels = np.stack([codes >> 8, codes & 255, codes % 251], 1).astype(np.uint8)
    alpha = np.full((len(pixels), 1), 255, np.uint8)
    png = _png(width, height, np.hstack([pixels, alpha]).tobytes())
    image = Image.open(io.BytesIO(png), formats=["PNG"])
    image.load()
    assert (image.size, image.mode) == ((width, height), mode)
    assert image.convert("RGB").tobytes() == pixels.tobytes()
