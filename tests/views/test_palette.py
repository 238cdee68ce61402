"""Test that the color scales are uniform and monotone, and start at the background of the page."""

import itertools

import numpy as np
import pytest

from bert_probe.views import palette

THEMES = pytest.mark.parametrize("dark", [False, True])


def linear(colours: tuple[str, ...]) -> np.ndarray:
    """Convert hexadecimal sRGB colors to linear light, shape [color, channel]."""
    encoded = np.array([list(bytes.fromhex(colour[1:])) for colour in colours]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Convert linear RGB to OKLab via CIE XYZ, independently of the combined matrices in the palette."""
    xyz = (
        rgb
        @ np.array(
            [
                [0.4124564, 0.3575761, 0.1804375],
                [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041],
            ]
        ).T
    )
    lms = (
        xyz
        @ np.array(
            [
                [0.8189330101, 0.3618667424, -0.1288597137],
                [0.0329845436, 0.9293118715, 0.0361456387],
                [0.0482003018, 0.2643662691, 0.6338517070],
            ]
        ).T
    )
    return (
        np.cbrt(lms)
        @ np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        ).T
    )


def contrast(color: str, other: str) -> float:
    dim, bright = sorted(linear((color, other)) @ [0.2126, 0.7152, 0.0722])
    return float((bright + 0.05) / (dim + 0.05))


# Viénot, Brettel and Mollon 1999: linear light as perceived without long or medium cones.
PROTAN = np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]])
DEUTAN = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
SIGHTS = {"ordinary": np.eye(3), "protan": PROTAN, "deutan": DEUTAN}


def simulate_color_blindness(colours: tuple[str, ...], sight: np.ndarray) -> np.ndarray:
    return oklab(np.clip(linear(colours) @ sight.T, 0, 1))


@THEMES
def test_sequential_scale_starts_at_the_background(dark: bool) -> None:
    scale = palette.sequential(dark)
    assert len(scale) == len(set(scale)) == 256
    assert scale[0] == (palette.PAPER_DARK if dark else palette.PAPER_LIGHT)
    assert contrast(scale[0], scale[-1]) > 9


@THEMES
@pytest.mark.parametrize("sight", SIGHTS)
def test_lightness_is_linear_in_the_value(dark: bool, sight: str) -> None:
    lightness = simulate_color_blindness(palette.sequential(dark), SIGHTS[sight])[:, 0]
    steps = np.diff(lightness)
    assert (steps > 0).all() if dark else (steps < 0).all()
    straight = np.linspace(lightness[0], lightness[-1], 256)
    assert np.abs(lightness - straight).max() < (0.004 if sight == "ordinary" else 0.07)


@THEMES
def test_adjacent_colors_differ_evenly(dark: bool) -> None:
    lab = oklab(linear(palette.sequential(dark)))
    sixteenths = np.linalg.norm(np.diff(lab[::17], axis=0), axis=1)
    assert sixteenths.max() / sixteenths.min() < 1.7


@THEMES
def test_hue_varies_little(dark: bool) -> None:
    lab = oklab(linear(palette.sequential(dark)[32:]))
    hue = np.degrees(np.arctan2(lab[:, 2], lab[:, 1])) % 360
    assert 265 < hue.min() < hue.max() < 300


@THEMES
def test_diverging_scale_is_the_background_at_zero_and_sequential_above(dark: bool) -> None:
    scale = palette.diverging(dark)
    assert len(scale) == 256
    assert scale[palette.CENTRE] == (palette.PAPER_DARK if dark else palette.PAPER_LIGHT)
    assert scale[-1] == palette.sequential(dark)[-1]
    below, above = oklab(linear((scale[0], scale[-1])))
    assert abs(below[0] - above[0]) < 0.01, "both ends have equal contrast"


@THEMES
@pytest.mark.parametrize("sight", SIGHTS)
def test_sign_is_visible_with_color_blindness(dark: bool, sight: str) -> None:
    scale = palette.diverging(dark)
    # Halfway to both ends, the colors must differ by many times the just-noticeable difference of 0.02.
    half = simulate_color_blindness((scale[palette.CENTRE - 64], scale[palette.CENTRE + 64]), SIGHTS[sight])
    assert np.linalg.norm(half[0] - half[1]) > 0.15


@THEMES
def test_each_half_of_diverging_is_monotone(dark: bool) -> None:
    lightness = oklab(linear(palette.diverging(dark)))[:, 0]
    toward = np.diff(lightness) * (1 if dark else -1)
    assert (toward[: palette.CENTRE] < 0).all()
    assert (toward[palette.CENTRE :] > 0).all()


@THEMES
@pytest.mark.parametrize("kind", ["sequential", "diverging"])
def test_lookup_table_equals_the_scale(kind: palette.ScaleKind, dark: bool) -> None:
    table = palette.lut_bytes(kind, dark)
    scale = palette.sequential(dark) if kind == "sequential" else palette.diverging(dark)
    assert len(table) == 768
    assert [f"#{table[i : i + 3].hex().upper()}" for i in range(0, 768, 3)] == list(scale)


def test_heads_are_distinct_and_visible_on_both_papers() -> None:
    assert len(palette.HEADS) >= 16
    for colour in palette.HEADS:
        assert contrast(colour, palette.PAPER_LIGHT) >= 3
        assert contrast(colour, palette.PAPER_DARK) >= 3
    lab = oklab(linear(palette.HEADS))
    assert min(np.linalg.norm(first - other) for first, other in itertools.combinations(lab, 2)) > 0.06


@pytest.mark.parametrize("sight", ["protan", "deutan"])
def test_first_six_heads_differ_with_color_blindness(sight: str) -> None:
    lab = simulate_color_blindness(palette.HEADS[:6], SIGHTS[sight])
    assert min(np.linalg.norm(first - other) for first, other in itertools.combinations(lab, 2)) > 0.06


@THEMES
def test_text_has_sufficient_contrast(dark: bool) -> None:
    paper, ink, accent = (
        (palette.PAPER_DARK, palette.INK_DARK, palette.ACCENT_DARK)
        if dark
        else (palette.PAPER_LIGHT, palette.INK_LIGHT, palette.ACCENT_LIGHT)
    )
    assert contrast(accent, paper) >= 4.5
    for ground in (paper, *(tint.dark if dark else tint.light for tint in palette.SEGMENTS.values())):
        assert contrast(ink, ground) >= 7


@THEMES
def test_segments_differ_without_color_vision(dark: bool) -> None:
    tints = tuple(tint.dark if dark else tint.light for tint in palette.SEGMENTS.values())
    for sight in SIGHTS.values():
        lab = simulate_color_blindness(tints, sight)
        assert np.linalg.norm(lab[0] - lab[1]) > 0.04


def test_diverging_scale_contains_the_given_share_of_the_values() -> None:
    values = np.append(np.linspace(-2, 2, 63), 2.42)
    assert palette.Scale.around_zero(values).high < 2.42
    assert palette.Scale.around_zero(values, coverage=1).high == 2.5
