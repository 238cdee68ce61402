"""Thumbnails: well-formed SVG in both themes, small, with the right numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from bert_probe.analyses.highlights.thumbnails import SIDE, Bars, Curves, Grid, Picture, TextSegments
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
@pytest.mark.parametrize("picture", PICTURES, ids=lambda one: type(one).__name__)
def test_thumbnail_is_well_formed_and_within_its_bounds(picture: Picture, dark: bool) -> None:
    drawn = small.svg(picture, dark)
    root = ElementTree.fromstring(drawn)
    assert root.get("width") == str(small.WIDTH)
    assert len(drawn) < 45_000
    for one in root.iter():
        for name, most in (
            ("x", small.WIDTH),
            ("y", small.HEIGHT),
            ("cx", small.WIDTH),
            ("cy", small.HEIGHT),
        ):
            assert 0 <= float(one.get(name, 0)) <= most
        assert 0 <= float(one.get("x", 0)) + float(one.get("width", 0)) <= small.WIDTH or one is root
    assert "nan" not in drawn
    assert small.alt_text(picture)


def test_cell_has_the_color_of_its_number() -> None:
    drawn = small.svg(Grid(np.array([[1.0, 0.25], [0.0, 4.0]])), dark=False)
    paths = dict(re.findall(r'<path fill="(#\w+)" d="((?:M\d+ \d+h1v1h-1z)+)"/>', drawn))
    colours = palette.sequential(dark=False)
    assert paths[colours[255]] == "M0 0h1v1h-1zM1 1h1v1h-1z", "1, and what is beyond it"
    (other,) = set(paths) - {colours[255]}
    assert paths[other] == "M1 0h1v1h-1z"
    # By the root, as attention is drawn everywhere.
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
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    assert texts == ["<b>&amp;", "null\ufffd"]
