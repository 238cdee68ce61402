"""Test thumbnails: well-formed and small SVG files in both themes, with the correct values."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from bert_probe.analyses.highlights.types import SIDE, Bars, Curves, Grid, Picture, TextSegments
from bert_probe.views import palette, small
from tests.helpers.traces import HOSTILE_TOKENS

PICTURES: tuple[Picture, ...] = (
    Grid.of(np.eye(5), mark=(4, 4)),
    Grid.of(np.full((300, 200), np.nan)),
    Grid.of(np.random.default_rng(0).dirichlet(np.ones(48), 48)),
    Grid.of(-np.ones((1, 1)), mark=(0, 0)),
    Curves([1, 0.5, -0.2], [1, 0.9, 0.8], 2),
    Curves([1.0], [1.0], 0),
    Bars([0.2, -0.1, 0.0], 1),
    Bars([0.0], 0),
    TextSegments([]),
    TextSegments(HOSTILE_TOKENS),
    TextSegments(["x" * 5_000]),
)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: type(picture).__name__)
def test_thumbnail_is_well_formed_and_within_its_bounds(picture: Picture, dark: bool) -> None:
    svg = small.svg(picture, dark)
    root = ElementTree.fromstring(svg)
    assert root.get("width") == str(small.WIDTH)
    assert len(svg) < 45_000
    for element in root.iter():
        for name, maximum in (
            ("x", small.WIDTH),
            ("y", small.HEIGHT),
            ("cx", small.WIDTH),
            ("cy", small.HEIGHT),
        ):
            assert 0 <= float(element.get(name, 0)) <= maximum
        assert (
            0 <= float(element.get("x", 0)) + float(element.get("width", 0)) <= small.WIDTH or element is root
        )
    assert "nan" not in svg
    assert small.alt_text(picture)


def test_cell_has_the_color_of_its_number() -> None:
    svg = small.svg(Grid(np.array([[1.0, 0.25], [0.0, 4.0]])), dark=False)
    paths = dict(re.findall(r'<path fill="(#\w+)" d="((?:M\d+ \d+h1v1h-1z)+)"/>', svg))
    colours = palette.sequential(dark=False)
    assert paths[colours[255]] == "M0 0h1v1h-1zM1 1h1v1h-1z", "1, and values above it"
    (other,) = set(paths) - {colours[255]}
    assert paths[other] == "M1 0h1v1h-1z"
    # Colors show the square root of the weights, as in all attention pictures.
    assert abs(colours.index(other) / 255 - np.sqrt(0.25)) <= 0.5 / 15 + 1e-9


def test_large_matrix_keeps_its_largest_numbers_and_its_mark() -> None:
    matrix = np.zeros((100, 70))
    matrix[97, 69] = 1
    grid = Grid.of(matrix, mark=(97, 69))
    assert max(grid.cells.shape) <= SIDE
    assert grid.mark is not None
    assert grid.cells[grid.mark] == grid.cells.sum() == 1


def test_user_text_is_escaped() -> None:
    root = ElementTree.fromstring(small.svg(TextSegments(["<b>&amp;", "null\x00"]), dark=True))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert texts == ["<b>&amp;", "null\ufffd"]
