"""Vectors laid out on a plane, so that an eye can go over many of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.progress import Report
from bert_probe.model.trace import Array

SEED = 0
NEIGHBOURS = 15


@dataclass(frozen=True, eq=False)
class Map:
    """Vectors as points of a plane.

    Attributes:
        points: float32 [vector, 2].
        method: how they were laid out.
        explained: share of the variance along each of the two axes, 0 to 1; None where axes mean nothing.
    """

    points: Array
    method: Literal["pca", "umap"]
    explained: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 2:
            raise ShapeError(f"Points have shape {self.points.shape}; [vector, 2] is needed.")


def pca_map(vectors: Array) -> Map:
    """The first two principal components (Pearson 1901; Hotelling 1933).

    The sign of a component, which is arbitrary, makes its largest loading positive.

    Args:
        vectors: [vector, hidden].

    Raises:
        UnavailableError: fewer than two different vectors.
    """
    _check(vectors, 2)
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, singular, axes = np.linalg.svd(centred, full_matrices=False)
    variance = singular**2
    if not variance.sum() > 0:
        raise UnavailableError("All vectors are equal, so there is nothing to lay out. Give other sentences.")
    points = np.zeros((len(vectors), 2), np.float32)
    explained = [0.0, 0.0]
    for axis in range(min(2, len(singular))):
        sign = np.sign(axes[axis, np.abs(axes[axis]).argmax()])
        points[:, axis] = sign * singular[axis] * left[:, axis]
        explained[axis] = float(variance[axis] / variance.sum())
    return Map(points, "pca", (explained[0], explained[1]))


def umap_map(vectors: Array, report: Report | None = None) -> Map:
    """UMAP (McInnes, Healy and Melville 2018): near vectors stay near; distances and axes mean little.

    With cosine distances, 15 neighbours (fewer where there are fewer vectors), starting from the
    principal components, and a fixed seed, so that a map repeats on one machine. The first one in a
    process takes half a minute longer, in which its code is compiled.

    Args:
        report: told after each epoch; what it raises is raised when the epochs are over.

    Raises:
        UnavailableError: fewer than three vectors, or umap-learn is not installed.
    """
    _check(vectors, 3)
    try:
        from umap import UMAP  # seconds, which only this function should cost
    except ModuleNotFoundError as error:
        if error.name != "umap":
            raise
        raise UnavailableError(
            "UMAP is an extra that is not installed. Run pip install umap-learn, or choose another map."
        ) from None

    bar = _Bar(report)
    shown = {"disable": report is None, "file": bar, "bar_format": "{n}/{total}", "mininterval": 0}
    mapper = UMAP(
        n_neighbors=min(NEIGHBOURS, len(vectors) - 1),
        metric="cosine",
        init="pca",
        random_state=SEED,
        n_jobs=1,
        tqdm_kwds=shown,
    )
    points = np.asarray(mapper.fit_transform(vectors), np.float32)
    if bar.raised is not None:
        raise bar.raised
    return Map(points, "umap")


class _Bar:
    """Where UMAP writes its progress bar: the numbers in it go to a report."""

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self.raised: BaseException | None = None

    def write(self, text: str) -> None:
        found = re.search(r"(\d+)/(\d+)", text)
        if found is None or self._report is None or self.raised is not None:
            return
        try:
            self._report(int(found[1]), int(found[2]))
        except BaseException as error:
            # Raised from here it would leave tqdm's lock taken, and every later bar would wait for ever.
            self.raised = error

    def flush(self) -> None:
        pass


def _check(vectors: Array, least: int) -> None:
    if vectors.ndim != 2:
        raise ShapeError(f"Vectors have shape {vectors.shape}; [vector, hidden] is needed.")
    if len(vectors) < least:
        raise UnavailableError(f"A map of {len(vectors)} says nothing. Give {least} sentences or more.")
