"""Results as heatmaps: what is drawn of an answer, on its page, in a notebook and in a file."""

from __future__ import annotations

from collections.abc import Sequence

from bert_probe.analyses.attention.attention import AttentionResult
from bert_probe.analyses.attention.find_heads import FindHeadsResult
from bert_probe.analyses.attention.heads import HeadsResult
from bert_probe.analyses.attention.measures import measure as measure_named
from bert_probe.analyses.attention.token_rollout import TokenRolloutResult
from bert_probe.analyses.attribution.head_ablation import HeadAblationResult, HeadAblationSweepResult
from bert_probe.analyses.comparison.minimal_pair import REST, MinimalPairResult, MinimalPairRowResult
from bert_probe.analyses.vectors.hidden_states import HiddenStatesResult
from bert_probe.analyses.vectors.sentences import SentencesResult
from bert_probe.analyses.vectors.similarity import SimilarityResult
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array
from bert_probe.text.words import Unit
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.measures import CHANGES, MEASURES
from bert_probe.views.scale import SHARES, Scale
from bert_probe.views.steps import strips
from bert_probe.views.text import labels, positions, shown

COSINES = Scale("diverging", -1, 1)


# ---------------------------------------------------------------- attention


def attention_title(shown: AttentionResult) -> str:
    """What a picture of it is called."""
    what = measure_named(shown.question.measure)
    layer, head = shown.question.layer + 1, shown.question.head
    if what.of_heads is None:
        return f"{what.title} layer {layer}"
    named = "mean over the heads" if head == "mean" else f"head {int(head) + 1}"
    return f"{what.title} in layer {layer}, {named}"


def of_attention(found: AttentionResult, root: bool = True) -> Heatmap:
    """Queries and keys; `root` gives small weights more of the colours.

    The scale runs from 0 to 1; what is no share has no such end, so its is the next round number.
    """
    end = 1.0 if found.shares else Scale.from_zero(found.weights, 0.0).high
    return Heatmap(
        found.weights,
        labels(found.queries),
        labels(found.keys),
        HeatmapSpec(
            scale=Scale("sequential", 0, end, "sqrt" if root else "linear"),
            row_axis="query",
            column_axis="key",
            value_name=measure_named(found.question.measure).value,
            caption=attention_title(found),
            row_positions=positions(found.queries),
            column_positions=positions(found.keys),
            file_name="attention",
        ),
    )


def of_reach(found: TokenRolloutResult) -> Heatmap:
    """A row a layer."""
    unit = found.units[found.chosen]
    name = f"{shown(unit.display)} ({unit.position})"
    # Of shares the largest may be a hair above 1.
    end = 1.0 if found.values.max() <= SHARES.high + SHARES.slack else Scale.from_zero(found.values).high
    captions = {
        "from": f"How much of {name} is in each token, layer by layer",
        "into": f"How much of each token is in {name}, layer by layer",
    }
    return Heatmap(
        found.values,
        _counted(len(found.values)),
        labels(found.units),
        HeatmapSpec(
            scale=Scale("sequential", 0, end, "sqrt"),
            row_axis="layer",
            column_axis="token",
            value_name=measure_named("rollout").value,
            caption=captions[found.question.direction],
            square=False,
            column_positions=positions(found.units),
            file_name="reach",
        ),
    )


# ---------------------------------------------------------------- heads


def by_head(values: Array, name: str, caption: str, scale: Scale, file_name: str) -> Heatmap:
    """A number for each head, [layer, head]."""
    layers, heads = values.shape
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="layer",
        column_axis="head",
        value_name=name,
        caption=caption,
        file_name=file_name,
    )
    return Heatmap(values, _counted(layers), _counted(heads), drawing)


def of_found_heads(found: FindHeadsResult) -> Heatmap:
    """Attention between words, by head."""
    name = "weight" if len(found.words) == 1 else "mean weight"
    arrows = ", ".join(f"{query} → {key}" for query, key in found.words)
    return by_head(found.weights, name, f"Attention from {arrows}, by head", SHARES, "find_heads")


def of_each_ablation(found: HeadAblationSweepResult) -> Heatmap:
    """What each head changes when it is switched off."""
    values = found.mean_token_change
    title = "Mean change of the tokens, by head switched off"
    return by_head(values, "change", title, Scale.from_zero(values, 0.0), "each_head_off")


def of_ablation(found: HeadAblationResult) -> dict[str, Heatmap]:
    """Cosines of the tokens with the heads, without them, and the difference."""
    change = found.similarity()
    pictures = {
        "before": ("With the heads", change.before, "cosine", COSINES),
        "after": ("Without them", change.after, "cosine", COSINES),
        "difference": ("Difference", change.difference, "difference", Scale.around_zero(change.difference)),
    }
    return {
        key: between(
            values, change.tokens, change.tokens, ("token", "token"), scale, name, title, f"similarity_{key}"
        )
        for key, (title, values, name, scale) in pictures.items()
    }


def of_profiles(found: HeadsResult) -> list[Heatmap]:
    """Every measure, by head."""
    return [
        by_head(values, one.name, one.title, Scale.from_zero(values), f"heads-{name}")
        for name, one in MEASURES.items()
        for values in [found.values[name]]
    ]


# ---------------------------------------------------------------- similarity


def of_similarity(found: SimilarityResult) -> Heatmap:
    """Cosines of tokens with tokens."""
    title = f"Cosine similarity of token vectors after {_after(found.question.layer)}"
    return between(
        found.cosines,
        found.rows,
        found.columns,
        similarity_axes(found),
        COSINES,
        "cosine",
        title,
        "similarity",
    )


def similarity_axes(found: SimilarityResult) -> tuple[str, str]:
    """What rows and columns are."""
    if found.a is not found.b:
        return "A", "B"
    return ("token", "token") if found.a.encoding.pair is None else ("segment A", "segment B")


def of_context(found: WordInContextResult, layer: int) -> Heatmap:
    """The chosen words against each other at a layer."""
    return cosines(
        found.cosine(layer),
        [shown(name) for name in found.names],
        "word",
        f"Cosine of the words' vectors after {_after(layer)}",
        "context",
    )


def of_sentences(found: SentencesResult) -> Heatmap:
    """Every two sentences, in their order."""
    names = [f"{index + 1} {shown(found.sentences[index])}" for index in found.order]
    return cosines(found.cosines, names, "sentence", "Cosine of every two sentences", "sentences")


def of_vectors(found: HiddenStatesResult) -> Heatmap:
    """A row a vector."""
    caption = f"Token vectors after {_after(found.question.layer)}"
    scale = Scale.around_zero(found.values)
    return strips(found.values, [shown(name) for name in found.names], scale, "vectors", caption, "token")


# ---------------------------------------------------------------- two texts


def of_changes(pair: MinimalPairResult) -> Heatmap:
    """How much each head changed between two texts."""
    name = CHANGES[pair.question.by].name.lower()
    title = "Change of each head's attention between A and B"
    return by_head(pair.change, name, title, SHARES, "compare-heads")


def of_moved(pair: MinimalPairResult) -> Heatmap:
    """How far each aligned vector moved, layer by layer."""
    units = pair.alignment.aligned
    return Heatmap(
        pair.moved.T,
        labels(units),
        [str(layer) for layer in range(len(pair.moved))],
        HeatmapSpec(
            scale=SHARES,
            row_axis="word" if pair.question.words else "token",
            column_axis="layer",
            value_name="1 − cosine",
            caption="How far each aligned vector moved between A and B",
            row_positions=positions(units),
            file_name="compare-moved",
        ),
    )


def of_row_pair(row: MinimalPairRowResult) -> tuple[Heatmap, Heatmap]:
    """Where a word looks in both texts, and the difference."""
    layer, head = row.question.layer, row.question.head
    where = f"layer {layer + 1}, " + ("mean over the heads" if head == "mean" else f"head {head + 1}")
    query, keys = shown(row.query.display), [*labels(row.keys), REST]

    def one(values: Array, rows: list[str], scale: Scale, name: str, caption: str) -> Heatmap:
        drawing = HeatmapSpec(
            scale=scale,
            row_axis="sentence",
            column_axis="key",
            value_name=name,
            caption=caption,
            column_positions=[*positions(row.keys), None],
            file_name="compare-row",
        )
        return Heatmap(values, rows, keys, drawing)

    difference = f"What “{query}” gives to each key more, or less, in B"
    return (
        one(
            row.both, ["A", "B"], SHARES, "attention weight", f"Where “{query}” looks in A and in B, {where}"
        ),
        one(row.difference[None], ["B − A"], Scale("diverging", -1, 1, "sqrt"), "difference", difference),
    )


# ---------------------------------------------------------------- what they have in common


def between(
    values: Array,
    rows: Sequence[Token | Unit],
    columns: Sequence[Token | Unit],
    axes: tuple[str, str],
    scale: Scale,
    value_name: str,
    caption: str,
    file_name: str,
) -> Heatmap:
    """Tokens against tokens."""
    drawing = HeatmapSpec(
        scale=scale,
        row_axis=axes[0],
        column_axis=axes[1],
        value_name=value_name,
        caption=caption,
        row_positions=positions(rows),
        column_positions=positions(columns),
        file_name=file_name,
    )
    return Heatmap(values, labels(rows), labels(columns), drawing)


def cosines(
    values: Array, names: Sequence[str], axis: str, caption: str, file_name: str, whole: bool = False
) -> Heatmap:
    """Names against themselves."""
    drawing = HeatmapSpec(
        scale=COSINES,
        row_axis=axis,
        column_axis=axis,
        value_name="cosine",
        whole=whole,
        caption=caption,
        file_name=file_name,
    )
    return Heatmap(values, names, names, drawing)


def _after(layer: int) -> str:
    return "the output of the embeddings" if layer == 0 else f"layer {layer}"


def _counted(count: int) -> list[str]:
    return [str(number + 1) for number in range(count)]
