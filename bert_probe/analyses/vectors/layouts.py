"""Two-dimensional layouts of vectors (PCA, t-SNE and UMAP), their clusters, and the words of each cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_probe.analyses.vectors.similarity import unit_rows
from bert_probe.core import extras
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

SEED = 0
NEIGHBORS = 15
PERPLEXITY = 30.0

_MAX_EQUAL = 16 * float(np.finfo(np.float32).eps)
"""Maximum difference in any component between unit vectors that are considered equal."""
MAX_CLUSTERED = 5_000
"""Maximum number of rows that are clustered. If there are more rows, a sample is drawn with a fixed seed."""
MIN_SAMPLES = 2
"""HDBSCAN's min_samples: the core distance of a row is the distance to this many rows, itself included.

A larger number leaves more rows without a cluster.
"""
CLUSTER_WORDS = 8
"""Maximum number of words that describe a cluster."""


@dataclass(frozen=True, eq=False)
class PointLayout:
    """Vectors as points in a plane.

    Attributes:
        points: coordinates, float32 [vector, 2].
        explained: share of the variance along each axis, 0 to 1; None for methods whose axes have no meaning.
        settings: parameters of the method, by name.
    """

    points: Array
    explained: tuple[float, float] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 2:
            raise ShapeError(f"points must have shape [vector, 2], not {self.points.shape}.")


def pca(vectors: Array, progress: Progress = no_progress) -> PointLayout:  # noqa: ARG001 - immediate
    """Project vectors onto their first two principal components (Pearson 1901; Hotelling 1933).

    The arbitrary sign of a component is set so that the loading with the largest absolute value is positive.

    Args:
        vectors: the vectors, [vector, hidden].
        progress: not called.

    Raises:
        UnavailableError: there are fewer than two different vectors.
    """
    _check(vectors, 2)
    points, variance = _components(vectors)
    total = variance.sum()
    if not total > 0:
        raise UnavailableError("All vectors are equal, so there is no layout. Use other sentences.")
    shares = [*(variance[:2] / total), 0.0][:2]
    return PointLayout(read_only(points.astype(np.float32)), (float(shares[0]), float(shares[1])))


def tsne(vectors: Array, progress: Progress = no_progress) -> PointLayout:
    """Return scikit-learn's t-SNE layout (van der Maaten and Hinton 2008), which preserves neighborhoods.

    The vectors are divided by their norms, so that squared distances are 2 − 2 · cosine. Perplexity is 30, or
    a third of the number of other vectors if these are fewer than 90. The layout starts from the
    principal components (Kobak and Linderman 2021) with a fixed seed and in one thread, so that it is
    reproducible on one machine. Forces are approximated by Barnes-Hut (van der Maaten 2014).

    Args:
        vectors: the vectors, [vector, hidden].
        progress: called once at the beginning, because scikit-learn does not report progress.

    Raises:
        UnavailableError: there are fewer than four vectors, a vector is zero, or all have the same direction.
    """
    from sklearn.manifold import TSNE  # imported here because the import takes a second
    from threadpoolctl import threadpool_limits

    rows = _directions(vectors, 4)
    progress(0, 0)
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    start, _ = _components(rows)
    start *= 1e-4 / start[:, 0].std()  # small initial spread, as recommended for t-SNE
    mapper = TSNE(perplexity=perplexity, init=start.astype(np.float32), random_state=SEED)
    # Use one thread: several threads sum in varying order, and t-SNE amplifies the rounding errors.
    with threadpool_limits(1, user_api="openmp"):
        points = np.asarray(mapper.fit_transform(rows.astype(np.float32)), np.float32)
    return PointLayout(read_only(points), settings={"perplexity": perplexity, "seed": SEED})


def umap(vectors: Array, progress: Progress = no_progress) -> PointLayout:
    """Return the UMAP layout (McInnes, Healy and Melville 2018), which preserves neighborhoods.

    The settings are cosine distances, 15 neighbors (fewer with fewer vectors), the principal components as
    the start, and a fixed seed, so that the layout is reproducible on one machine. The axes and the distances
    between distant points have little meaning. The first call in a process takes half a minute longer,
    because code is compiled.

    Args:
        vectors: the vectors, [vector, hidden].
        progress: called after each epoch; an exception that it raises is raised again after the last epoch.

    Raises:
        UnavailableError: there are fewer than three vectors, a vector is zero, all have the same direction,
            or umap-learn is not installed.
    """
    _directions(vectors, 3)
    extras.require("umap", "choose another map")
    from umap import UMAP  # imported here because the import takes seconds

    bar = _ProgressStream(progress)
    neighbors = min(NEIGHBORS, len(vectors) - 1)
    mapper = UMAP(
        n_neighbors=neighbors,
        metric="cosine",
        init="pca",
        random_state=SEED,
        n_jobs=1,
        tqdm_kwds={"disable": False, "file": bar, "bar_format": "{n}/{total}", "mininterval": 0},
    )
    points = np.asarray(mapper.fit_transform(vectors), np.float32)
    if bar.raised is not None:
        raise bar.raised
    return PointLayout(read_only(points), settings={"neighbors": neighbors, "seed": SEED})


METHODS: Mapping[str, Callable[[Array, Progress], PointLayout]] = {"pca": pca, "tsne": tsne, "umap": umap}


def available_methods() -> tuple[str, ...]:
    """Return the available layout methods, which include UMAP only if umap-learn is installed."""
    return tuple(method for method in METHODS if method != "umap" or extras.is_installed("umap"))


class _ProgressStream:
    """A text stream that reads epoch counts from UMAP's progress bar and passes them to a callback."""

    def __init__(self, progress: Progress) -> None:
        self._report = progress
        self.raised: BaseException | None = None

    def write(self, text: str) -> None:
        match = re.search(r"(\d+)/(\d+)", text)
        if match is None or self.raised is not None:
            return
        try:
            self._report(int(match[1]), int(match[2]))
        except BaseException as error:
            # Raised here, the exception would leave tqdm's lock acquired, and later progress bars would hang.
            self.raised = error

    def flush(self) -> None:
        pass


def _components(vectors: Array) -> tuple[Array, Array]:
    """Return the coordinates on two principal components, [vector, 2], and all squared singular values."""
    centered = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    left, singular, axes = np.linalg.svd(centered, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    signs = loading_signs(axes[:2].T)
    for axis in range(min(2, len(singular))):
        points[:, axis] = signs[axis] * singular[axis] * left[:, axis]
    return points, singular**2


def loading_signs(axes: Array) -> Array:
    """Return the sign of the loading with the largest absolute value on each axis; 0 for a zero axis.

    Args:
        axes: the directions of the axes, [hidden, axis].
    """
    signs: Array = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    return signs


def _directions(vectors: Array, minimum: int) -> Array:
    """Divide vectors by their norms, in float64, for layouts that depend only on directions.

    Raises:
        UnavailableError: there are fewer than ``minimum`` vectors, a vector is zero, or all vectors have the
            same direction.
    """
    _check(vectors, minimum)
    rows = unit_rows(vectors)
    if not np.isfinite(rows).all():
        raise UnavailableError(
            "The vector of a sentence is all zeros, so the sentence has no neighbors. Remove this sentence."
        )
    if np.abs(rows - rows[0]).max() <= _MAX_EQUAL:
        raise UnavailableError(
            "All vectors have the same direction, so there is no layout. Use other sentences."
        )
    return rows


def _check(vectors: Array, minimum: int) -> None:
    if vectors.ndim != 2:
        raise ShapeError(f"vectors must have shape [vector, hidden], not {vectors.shape}.")
    if len(vectors) < minimum:
        raise UnavailableError(
            f"This map needs at least {minimum} sentences, not {len(vectors)}. Add sentences."
        )
    if not np.isfinite(vectors).all():
        raise UnavailableError(
            "The vector of a sentence contains NaN or infinite values. Open the model in float32."
        )


def cluster(unit: Array, min_cluster: int) -> tuple[Array, Array]:
    """Cluster unit vectors, or a sample of them (see `MAX_CLUSTERED`), with HDBSCAN.

    Args:
        unit: the unit vectors, [row, hidden].
        min_cluster: smallest number of rows in a cluster.

    Returns:
        The indices of the clustered rows, and the cluster of each, from 0; −1 for no cluster.
    """
    from sklearn.cluster import HDBSCAN

    rows = np.arange(len(unit))
    if len(unit) > MAX_CLUSTERED:
        rows = np.sort(np.random.default_rng(0).choice(len(unit), MAX_CLUSTERED, replace=False))
    if len(rows) <= min_cluster:
        return rows, np.full(len(rows), -1)
    # In many dimensions, computing the distances of all pairs is 18 times as fast as using trees.
    labels = HDBSCAN(
        min_cluster_size=min_cluster, min_samples=MIN_SAMPLES, algorithm="brute", copy=True
    ).fit_predict(unit[rows])
    return rows, np.where(labels < 0, -1, labels)


def cluster_words(texts: Sequence[str], labels: Array) -> list[list[str]]:
    """Return, for each cluster, the words that are more frequent in its texts than in all other texts.

    Words are ranked by the z-score of their log-odds ratio between the cluster and all other texts, with the
    counts in all texts as the prior (Monroe, Colaresi and Quinn 2008). Words that are frequent in all texts
    do not have a high score. Each cluster has at most `CLUSTER_WORDS` words.

    Args:
        texts: the texts, also those in no cluster.
        labels: cluster of each text, from 0; negative for no cluster.
    """
    words_by_cluster: list[Counter[str]] = [Counter() for _ in range(int(labels.max(initial=-1)) + 1)]
    total: Counter[str] = Counter()
    for text, label in zip(texts, labels, strict=True):
        words = re.findall(r"\w{2,}", text.casefold())
        total.update(words)
        if label >= 0:
            words_by_cluster[label].update(words)
    size = total.total()
    results = []
    for counts in words_by_cluster:
        scores = {word: _log_odds(n, counts.total(), total[word], size) for word, n in counts.items()}
        ranked = sorted(scores, key=lambda word: (-scores[word], word))[:CLUSTER_WORDS]
        results.append([word for word in ranked if scores[word] > 0])
    return results


def _log_odds(count: int, size: int, total_count: int, total_size: int) -> float:
    """Return the z-score of the log-odds ratio of a word between the texts of a cluster and all other texts.

    Args:
        count: occurrences of the word in the cluster, which has ``size`` words.
        total_count: occurrences of the word in all texts, which have ``total_size`` words.
    """
    own, other = count + total_count, 2 * total_count - count
    ratio = np.log(own / (size + total_size - own)) - np.log(other / (2 * total_size - size - other))
    return float(ratio / np.sqrt(1 / own + 1 / other))
