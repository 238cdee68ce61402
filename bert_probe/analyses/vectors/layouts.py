"""Vectors laid out on a plane, so that an eye can go over many of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from bert_probe.analyses.vectors.cosine import unit_rows
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

SEED = 0
NEIGHBOURS = 15
PERPLEXITY = 30.0

_ALIKE = 16 * float(np.finfo(np.float32).eps)
"""Directions no further apart than this are one direction: vectors are known no better."""


@dataclass(frozen=True, eq=False)
class PointLayout:
    """Vectors as points of a plane.

    Attributes:
        points: float32 [vector, 2].
        explained: share of the variance along each of the two axes, 0 to 1; None where axes mean nothing.
        settings: what the method was told, by name.
    """

    points: Array
    explained: tuple[float, float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 2:
            raise ShapeError(f"Points have shape {self.points.shape}; [vector, 2] is needed.")


def pca(vectors: Array, report: Progress = no_progress) -> PointLayout:  # noqa: ARG001 - over at once
    """The first two principal components (Pearson 1901; Hotelling 1933).

    The sign of a component, which is arbitrary, makes its largest loading positive.

    Args:
        vectors: [vector, hidden].

    Raises:
        UnavailableError: fewer than two different vectors.
    """
    _check(vectors, 2)
    points, variance = _components(vectors)
    total = variance.sum()
    if not total > 0:
        raise UnavailableError("All vectors are equal, so there is nothing to lay out. Give other sentences.")
    shares = [*(variance[:2] / total), 0.0][:2]
    return PointLayout(read_only(points.astype(np.float32)), (float(shares[0]), float(shares[1])))


def tsne(vectors: Array, report: Progress = no_progress) -> PointLayout:
    """t-SNE (van der Maaten and Hinton 2008), by scikit-learn: near vectors stay near.

    Of the vectors divided by their lengths, whose squared distance is 2 − 2 · cosine. Perplexity is 30, or a
    third of the other vectors where these are fewer than 90. It starts from the principal components (Kobak
    and Linderman 2021) with a fixed seed and in one thread, so that a map repeats on one machine. Forces are
    summed over groups of far points (van der Maaten 2014).

    Args:
        report: told at the beginning alone: scikit-learn says nothing on its way.

    Raises:
        UnavailableError: fewer than four vectors, one of zeros, or all of one direction.
    """
    from sklearn.manifold import TSNE  # a second, which only this function should cost
    from threadpoolctl import threadpool_limits

    rows = _directions(vectors, 4)
    report(0, 0)
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    start, _ = _components(rows)
    start *= 1e-4 / start[:, 0].std()  # small, so that it is a start and no more
    mapper = TSNE(perplexity=perplexity, init=start.astype(np.float32), random_state=SEED)
    # Several threads add in the order in which they come, and t-SNE makes much of a last digit.
    with threadpool_limits(1, user_api="openmp"):
        points = np.asarray(mapper.fit_transform(rows.astype(np.float32)), np.float32)
    return PointLayout(read_only(points), settings={"perplexity": perplexity, "seed": SEED})


def umap(vectors: Array, report: Progress = no_progress) -> PointLayout:
    """UMAP (McInnes, Healy and Melville 2018): near vectors stay near; distances and axes mean little.

    With cosine distances, 15 neighbours (fewer where there are fewer vectors), starting from the
    principal components, and a fixed seed, so that a map repeats on one machine. The first one in a
    process takes half a minute longer, in which its code is compiled.

    Args:
        report: told after each epoch; what it raises is raised when the epochs are over.

    Raises:
        UnavailableError: fewer than three vectors, one of zeros, all of one direction, or umap-learn is not
            installed.
    """
    _directions(vectors, 3)
    try:
        from umap import UMAP  # seconds, which only this function should cost
    except ModuleNotFoundError as error:
        if error.name != "umap":
            raise
        raise UnavailableError(
            "UMAP is an extra that is not installed. Run pip install umap-learn, or choose another map."
        ) from None

    bar = _ProgressStream(report)
    neighbours = min(NEIGHBOURS, len(vectors) - 1)
    mapper = UMAP(
        n_neighbors=neighbours,
        metric="cosine",
        init="pca",
        random_state=SEED,
        n_jobs=1,
        tqdm_kwds={"disable": False, "file": bar, "bar_format": "{n}/{total}", "mininterval": 0},
    )
    points = np.asarray(mapper.fit_transform(vectors), np.float32)
    if bar.raised is not None:
        raise bar.raised
    return PointLayout(read_only(points), settings={"neighbours": neighbours, "seed": SEED})


METHODS: Mapping[str, Callable[[Array, Progress], PointLayout]] = {"pca": pca, "tsne": tsne, "umap": umap}


def installed() -> tuple[str, ...]:
    """The methods that can be had here: UMAP is an extra."""
    return tuple(method for method in METHODS if method != "umap" or find_spec("umap") is not None)


class _ProgressStream:
    """Where UMAP writes its progress bar: the numbers in it go to a report."""

    def __init__(self, report: Progress) -> None:
        self._report = report
        self.raised: BaseException | None = None

    def write(self, text: str) -> None:
        found = re.search(r"(\d+)/(\d+)", text)
        if found is None or self.raised is not None:
            return
        try:
            self._report(int(found[1]), int(found[2]))
        except BaseException as error:
            # Raised from here it would leave tqdm's lock taken, and every later bar would wait for ever.
            self.raised = error

    def flush(self) -> None:
        pass


def _components(vectors: Array) -> tuple[Array, Array]:
    """Places on the first two principal components, float64 [vector, 2], and the variance of each one."""
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, singular, axes = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    for axis in range(min(2, len(singular))):
        sign = np.sign(axes[axis, np.abs(axes[axis]).argmax()])
        points[:, axis] = sign * singular[axis] * left[:, axis]
    return points, singular**2


def _directions(vectors: Array, least: int) -> Array:
    """Rows of length 1, float64, for methods that look at directions alone."""
    _check(vectors, least)
    rows = unit_rows(vectors)
    if not np.isfinite(rows).all():
        raise UnavailableError("A sentence's vector is all zeros, so it has no neighbours. Leave it out.")
    if np.abs(rows - rows[0]).max() <= _ALIKE:
        raise UnavailableError(
            "All vectors point the same way, so there is nothing to lay out. Give other sentences."
        )
    return rows


def _check(vectors: Array, least: int) -> None:
    if vectors.ndim != 2:
        raise ShapeError(f"Vectors have shape {vectors.shape}; [vector, hidden] is needed.")
    if len(vectors) < least:
        raise UnavailableError(f"A map of {len(vectors)} says nothing. Give {least} sentences or more.")
    if not np.isfinite(vectors).all():
        raise UnavailableError("A sentence's vector holds what is no number. Open the model in float32.")
