"""Heatmaps of attention, heads, similarities, vectors, minimal pairs, attributions and evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.analyses.attention.attention import AttentionResult, TokenRolloutResult
from bert_probe.analyses.attention.find_heads import FindHeadsResult
from bert_probe.analyses.attention.heads import HeadsResult
from bert_probe.analyses.attention.measures import get_measure as measure_named
from bert_probe.analyses.attribution.activation_patching import ActivationPatchingResult
from bert_probe.analyses.attribution.attribution import AttributionResult
from bert_probe.analyses.attribution.head_ablation import HeadAblationResult, HeadAblationSweepResult
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.attribution.methods import methods
from bert_probe.analyses.comparison.minimal_pair import REST, MinimalPairResult, MinimalPairRowResult
from bert_probe.analyses.comparison.model_change import HeadChangeResult, VectorChangeResult
from bert_probe.analyses.comparison.model_similarity import HeadMatchesResult, LayerSimilarityResult
from bert_probe.analyses.outputs.evaluate import EvaluateResult
from bert_probe.analyses.probing.relations import DIRECTIONS, RelationsResult
from bert_probe.analyses.vectors.embedding import HiddenStatesResult
from bert_probe.analyses.vectors.sentences import SentencesResult
from bert_probe.analyses.vectors.similarity import SimilarityResult, cosine
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.analyses.weights.positions import COSINES as BY_COSINE
from bert_probe.analyses.weights.positions import RELATIVE, TABLE, PositionsResult, format_distances
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.text.words import Unit
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.measures import CHANGES, MEASURES
from bert_probe.views.palette import SHARES, Scale
from bert_probe.views.steps import strips
from bert_probe.views.text import labels, place_name, positions, shorten

COSINES = Scale("diverging", -1, 1)
_MAX_POSITIONS = 2_048  # maximum number of positions in a heatmap of cosines, which then has 17 MB


# ---------------------------------------------------------------- attention


def attention_title(result: AttentionResult) -> str:
    """Return the title of an attention heatmap, such as "Attention weights in layer 2, head 5"."""
    measure = measure_named(result.question.measure)
    layer, head = result.question.layer + 1, result.question.head
    if measure.of_heads is None:
        return f"{measure.title} layer {layer}"
    head_name = "mean over the heads" if head == "mean" else f"head {int(head) + 1}"
    return f"{measure.title} in layer {layer}, {head_name}"


def attention_heatmap(result: AttentionResult, root: bool = True) -> Heatmap:
    """Return a heatmap of the attention of a head, with queries as rows and keys as columns.

    The color scale ends at 1 if the rows sum to 1, and otherwise at the next round number.

    Args:
        result: The attention of a head.
        root: Whether to color by the square root of the weights, which makes small weights visible.
    """
    end = 1.0 if result.shares else Scale.from_zero(result.weights, 0.0).high
    return Heatmap(
        result.weights,
        labels(result.queries),
        labels(result.keys),
        HeatmapSpec(
            scale=Scale("sequential", 0, end, "sqrt" if root else "linear"),
            row_axis="query",
            column_axis="key",
            value_name=measure_named(result.question.measure).value,
            caption=attention_title(result),
            row_positions=positions(result.queries),
            column_positions=positions(result.keys),
            file_name="attention",
        ),
    )


def token_rollout_heatmap(result: TokenRolloutResult) -> Heatmap:
    """Return a heatmap of the attention rollout from or into a token, one row per layer."""
    unit = result.units[result.chosen]
    name = place_name(unit)
    # End the scale at 1 even if a rounding error makes a share slightly larger than 1.
    end = 1.0 if result.values.max() <= SHARES.high + SHARES.slack else Scale.from_zero(result.values).high
    captions = {
        "from": f"Share of {name} in each token, by layer",
        "into": f"Share of each token in {name}, by layer",
    }
    return Heatmap(
        result.values,
        _numbers(len(result.values)),
        labels(result.units),
        HeatmapSpec(
            scale=Scale("sequential", 0, end, "sqrt"),
            row_axis="layer",
            column_axis="token",
            value_name=measure_named("rollout").value,
            caption=captions[result.question.direction],
            square=False,
            column_positions=positions(result.units),
            file_name="rollout",
        ),
    )


# ---------------------------------------------------------------- heads


def head_grid(values: Array, name: str, caption: str, scale: Scale, file_name: str) -> Heatmap:
    """Return a heatmap with one value per head; `values` has the shape [layer, head]."""
    layers, heads = values.shape
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="layer",
        column_axis="head",
        value_name=name,
        caption=caption,
        file_name=file_name,
    )
    return Heatmap(values, _numbers(layers), _numbers(heads), drawing)


def find_heads_heatmap(result: FindHeadsResult) -> Heatmap:
    """Return a heatmap of the attention weight of each head from the query words to the key words."""
    name = "weight" if len(result.words) == 1 else "mean weight"
    pairs = ", ".join(f"from “{query}” to “{key}”" for query, key in result.words)
    return head_grid(result.weights, name, f"Attention {pairs}, by head", SHARES, "find_heads")


def ablation_sweep_heatmap(result: HeadAblationSweepResult) -> Heatmap:
    """Return a heatmap of the mean change of the token vectors when each head is ablated."""
    values = result.mean_token_change
    title = "Mean change of the token vectors, by ablated head"
    return head_grid(values, "change", title, Scale.from_zero(values, 0.0), "each_head_off")


def ablation_heatmaps(result: HeadAblationResult) -> dict[str, Heatmap]:
    """Return heatmaps of token similarity: "before" and "after" the ablation, and the "difference"."""
    change = result.similarity()
    scale = Scale.around_zero(change.difference, coverage=1)
    pictures = {
        "before": ("Before ablation", change.before, "cosine", COSINES),
        "after": ("After ablation", change.after, "cosine", COSINES),
        "difference": ("Difference", change.difference, "difference", scale),
    }
    return {
        key: token_pair_heatmap(
            values, change.tokens, change.tokens, ("token", "token"), scale, name, title, f"similarity_{key}"
        )
        for key, (title, values, name, scale) in pictures.items()
    }


def head_measure_heatmaps(result: HeadsResult) -> list[Heatmap]:
    """Return one heatmap of all heads for each head measure."""
    return [
        head_grid(
            result.values[name],
            measure.name,
            measure.title,
            Scale.from_zero(result.values[name]),
            f"heads-{name}",
        )
        for name, measure in MEASURES.items()
    ]


# ---------------------------------------------------------------- similarity


def similarity_heatmap(result: SimilarityResult) -> Heatmap:
    """Return a heatmap with the cosine similarity of each pair of tokens."""
    title = f"Cosine similarity of token vectors after {_after(result.question.layer)}"
    return token_pair_heatmap(
        result.cosines,
        result.rows,
        result.columns,
        similarity_axes(result),
        COSINES,
        "cosine",
        title,
        "similarity",
    )


def similarity_axes(result: SimilarityResult) -> tuple[str, str]:
    """Return the titles of the row axis and the column axis of a similarity heatmap."""
    if result.a is not result.b:
        return "A", "B"
    return ("token", "token") if result.a.encoding.pair is None else ("segment A", "segment B")


def word_in_context_heatmap(result: WordInContextResult, layer: int) -> Heatmap:
    """Return a heatmap with the cosine similarity of each pair of selected words at a layer."""
    return cosine_heatmap(
        result.cosine(layer),
        [shorten(name) for name in result.names],
        "word",
        f"Cosine of each pair of word vectors after {_after(layer)}",
        "context",
    )


def sentences_heatmap(result: SentencesResult, names: Sequence[str] = ()) -> Heatmap:
    """Return a heatmap with the score of each pair of sentences, in the order of `SentencesResult.order`.

    Args:
        result: The sentences and their scores.
        names: Label of each sentence; by default the sentence itself.
    """
    caption = f"{result.recipe.score_title} of each pair of sentences"
    texts = names or result.sentences
    labels = [f"{index + 1} {shorten(texts[index])}" for index in result.order]
    heatmap = cosine_heatmap(result.scores, labels, "sentence", caption, "sentences")
    if result.recipe.similarity == "cosine":
        return heatmap
    scale, name = Scale.around_zero(result.compared.scores, coverage=1), result.recipe.score_name
    return heatmap._replace(drawing=heatmap.drawing | {"scale": scale, "value_name": name})


def hidden_states_heatmap(result: HiddenStatesResult) -> Heatmap:
    """Return a heatmap of token vectors, one row per token."""
    caption = f"Token vectors after {_after(result.question.layer)}"
    scale = Scale.around_zero(result.values)
    return strips(result.values, [shorten(name) for name in result.names], scale, "vectors", caption, "token")


# ---------------------------------------------------------------- two texts


def minimal_pair_heads_heatmap(pair: MinimalPairResult) -> Heatmap:
    """Return a heatmap of the change of each head's attention between texts A and B."""
    name = CHANGES[pair.question.by].name.lower()
    title = "Change of each head's attention between A and B"
    return head_grid(pair.change, name, title, SHARES, "compare-heads")


def minimal_pair_vectors_heatmap(pair: MinimalPairResult) -> Heatmap:
    """Return a heatmap of the cosine distance between aligned tokens of texts A and B, by token and layer."""
    units = pair.alignment.aligned
    return Heatmap(
        pair.moved.T,
        labels(units),
        _numbers(len(pair.moved), 0),
        HeatmapSpec(
            scale=SHARES,
            row_axis="word" if pair.question.words else "token",
            column_axis="layer",
            value_name="1 − cosine",
            caption="Change of each aligned vector between A and B",
            row_positions=positions(units),
            file_name="compare-moved",
        ),
    )


def minimal_pair_row_heatmaps(row: MinimalPairRowResult) -> tuple[Heatmap, Heatmap]:
    """Return two heatmaps: the attention rows of a word in texts A and B, and the difference of the rows."""
    layer, head = row.question.layer, row.question.head
    place = f"layer {layer + 1}, " + ("mean over the heads" if head == "mean" else f"head {head + 1}")
    query, keys = shorten(row.query.display), [*labels(row.keys), REST]

    def heatmap(values: Array, rows: list[str], scale: Scale, name: str, caption: str) -> Heatmap:
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

    title = f"Attention of “{query}” in A and in B, {place}"
    difference = f"Change of the attention of “{query}” from A to B"
    return (
        heatmap(row.both, ["A", "B"], SHARES, "attention weight", title),
        heatmap(row.difference[None], ["B − A"], Scale("diverging", -1, 1, "sqrt"), "difference", difference),
    )


# ---------------------------------------------------------------- shared helpers


def token_pair_heatmap(
    values: Array,
    rows: Sequence[Token | Unit],
    columns: Sequence[Token | Unit],
    axes: tuple[str, str],
    scale: Scale,
    value_name: str,
    caption: str,
    file_name: str,
) -> Heatmap:
    """Return a heatmap with one value per pair of tokens or words; `values` has the shape [row, column]."""
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


def cosine_heatmap(
    values: Array, names: Sequence[str], axis: str, caption: str, file_name: str, show_all: bool = False
) -> Heatmap:
    """Return a heatmap with the cosine similarity of each pair of items.

    Args:
        values: Cosines, shape [item, item].
        names: Labels of the items.
        axis: Title of both axes.
        caption: Title of the heatmap.
        file_name: Name of saved files, without extension.
        show_all: Whether all cells are visible at first, even if they become very small.
    """
    drawing = HeatmapSpec(
        scale=COSINES,
        row_axis=axis,
        column_axis=axis,
        value_name="cosine",
        whole=show_all,
        caption=caption,
        file_name=file_name,
    )
    return Heatmap(values, names, names, drawing)


def _after(layer: int) -> str:
    return "the output of the embeddings" if layer == 0 else f"layer {layer}"


def _numbers(count: int, first: int = 1) -> list[str]:
    return [str(first + number) for number in range(count)]


def position_heatmaps(result: PositionsResult) -> list[Heatmap]:
    """Return heatmaps of position embeddings or distance embeddings; [] if the view is a line chart."""
    if result.question.show == BY_COSINE:
        learned = result.position_table.vectors
        return [
            _position_cosines(learned, "Cosine of each pair of learned embeddings", "positions-learned"),
            _position_cosines(result.sinusoids, "Cosine of each pair of sinusoids", "positions-sinusoids"),
        ]
    if result.question.show == TABLE:
        learned = result.position_table.vectors
        return [
            _table(learned, "Learned position embeddings", "positions-learned-table"),
            _table(result.sinusoids, "Sinusoidal embeddings of the same shape", "positions-sinusoids-table"),
        ]
    if result.question.show == RELATIVE and result.relative is not None:
        cosines, names = result.relative_cosines, format_distances(result.relative)
        caption = "Cosine of each pair of distance embeddings"
        return [cosine_heatmap(cosines, names, "distance", caption, "positions-relative", show_all=True)]
    return []


def _position_cosines(vectors: Array, caption: str, name: str) -> Heatmap:
    step = -(-len(vectors) // _MAX_POSITIONS)  # rounded up
    values, names = cosine(vectors[::step], vectors[::step]), [*map(str, range(0, len(vectors), step))]
    caption += f", positions 0, {step}, {2 * step}, …" if step > 1 else ""
    return cosine_heatmap(values, names, "position", caption, name, show_all=True)


def _table(vectors: Array, caption: str, name: str) -> Heatmap:
    heatmap = strips(
        vectors, _numbers(len(vectors), 0), Scale.around_zero(vectors), name, caption, "position"
    )
    return heatmap._replace(drawing={**heatmap.drawing, "whole": True})


def relations_heatmap(result: RelationsResult, direction: int = 0) -> Heatmap:
    """Return a heatmap of each head's accuracy for each relation, in a direction of `DIRECTIONS`."""
    _, _, layers, heads = result.accuracies.shape
    return Heatmap(
        result.in_direction(direction),
        [f"{shorten(name)} ({count:,})" for name, count in zip(result.relations, result.counts, strict=True)],
        [f"{layer}.{head}" for layer in range(1, layers + 1) for head in range(1, heads + 1)],
        HeatmapSpec(
            scale=Scale("sequential", 0, 1),
            row_axis="relation",
            column_axis="head",
            value_name="accuracy",
            caption="Accuracy of predicting the related word by the largest weight, from "
            f"{DIRECTIONS[direction]}",
            square=False,
            file_name="relations",
        ),
    )


def head_change_heatmap(result: HeadChangeResult) -> Heatmap:
    """Return a heatmap of the change of each head's attention between models A and B."""
    values, scale, unit = _readable(result.total_variation)
    title = "Change of each head's attention from A to B"
    return head_grid(values, f"total variation{unit}", title, scale, "diff-heads")


def vector_change_heatmap(result: VectorChangeResult) -> Heatmap:
    """Return a heatmap of the cosine distance between the vectors of models A and B, by token and layer."""
    values, scale, unit = _readable(result.moved)
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="word" if result.question.words else "token",
        column_axis="layer",
        value_name=f"1 − cosine{unit}",
        caption="Change of each vector from A to B",
        row_positions=positions(result.units),
        file_name="diff-vectors",
    )
    return Heatmap(values.T, labels(result.units), _numbers(len(result.moved), 0), drawing)


def layer_similarity_heatmap(result: LayerSimilarityResult) -> Heatmap:
    """Return a heatmap with the CKA similarity of each layer of model A to each layer of model B."""
    drawing = HeatmapSpec(
        scale=Scale("sequential", 0, 1),
        row_axis="layer of A",
        column_axis="layer of B",
        value_name="CKA",
        caption="Similarity of the layers of A and B",
        file_name="diff-layers",
    )
    rows, columns = result.cka.shape
    return Heatmap(result.cka, _numbers(rows, 0), _numbers(columns, 0), drawing)


def head_matches_heatmap(result: HeadMatchesResult) -> Heatmap:
    """Return a heatmap with the similarity of each head of model A to each head of model B."""
    drawing = HeatmapSpec(
        scale=Scale("sequential", 0, 1),
        row_axis="head of A",
        column_axis="head of B",
        value_name="similarity",
        caption="Similarity of attention between the heads of A and B",
        file_name="diff-matches",
    )
    rows, columns = (
        [result.name(head, side) for head in range(result.matrix.shape[side])] for side in (0, 1)
    )
    return Heatmap(result.matrix, rows, columns, drawing)


def matched_head_heatmaps(
    result: HeadMatchesResult, a: Trace, b: Trace, row: int, column: int
) -> tuple[Heatmap, Heatmap]:
    """Return heatmaps of the attention of a head of model A and a head of model B, with the same color scale.

    The rows and columns are the spans that both tokenizers share. `row` is the index of the head of A, and
    `column` is the index of the head of B.
    """
    spans, queries = result.spans.spans, result.spans.queries
    keys = [shorten(span.text) for span in spans]
    first, second = (
        Heatmap(
            values,
            [shorten(span.text) for span in queries],
            keys,
            HeatmapSpec(
                scale=SHARES,
                row_axis="query",
                column_axis="key",
                value_name="weight",
                caption=f"Head {result.name(head, side)} of {'AB'[side]}",
                row_positions=result.spans.rows,
                column_positions=range(len(spans)),
                file_name=f"head-{'ab'[side]}",
            ),
        )
        for side, (values, head) in enumerate(zip(result.maps(a, b, row, column), (row, column), strict=True))
    )
    return first, second


def _readable(values: Array) -> tuple[Array, Scale, str]:
    """Return values for display with two decimals, their color scale, and a suffix with the unit.

    If all values are below 0.2, as after brief fine-tuning, they are multiplied by 100.
    """
    is_small = np.nan_to_num(values).max(initial=0.0) < 0.2
    scaled = 100 * values if is_small else values
    scale = Scale("sequential", 0, Scale.from_zero(np.nan_to_num(scaled), 0.0).high, "sqrt")
    return scaled, scale, ", hundredths" if is_small else ""


def patching_heatmap(result: ActivationPatchingResult) -> Heatmap:
    """Return a heatmap of the share of text A's output that each patch recovers.

    The axes are token and layer, or layer and head, depending on the patched component."""
    scale = Scale("diverging", -1, 1, "sqrt")
    if result.question.component == "heads":
        title = "Share of A's output recovered by patching each head"
        return head_grid(result.recovered, "recovered", title, scale, "patching-heads")
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="token",
        column_axis="layer",
        value_name="recovered",
        caption="Share of A's output recovered by patching each token's vector after each layer",
        row_positions=positions(result.tokens_a),
        file_name="patching-tokens",
    )
    names = [patched_name(result, position) for position in range(len(result.tokens_a))]
    prompt = [
        index for index, token in enumerate(result.tokens_a) if token.position in result.prompt_positions
    ]
    names = mark_prompt(names, prompt)
    return Heatmap(result.recovered.T, names, _numbers(len(result.recovered), 0), drawing)


def mark_prompt(names: Sequence[str], prompt: Sequence[int]) -> list[str]:
    """Return the labels of tokens, with the prefix "prompt: " for tokens of a checkpoint's prompt.

    Args:
        prompt: indices of the tokens of the prompt.
    """
    return [f"prompt: {name}" if position in prompt else name for position, name in enumerate(names)]


def patched_name(result: ActivationPatchingResult, place: int) -> str:
    """Return the label of the token at position `place` of text A.

    If text B has a different token at this position, the label names the tokens of A and B: "was for is".
    """
    token_a, token_b = (shorten(tokens[place].display) for tokens in (result.tokens_a, result.tokens_b))
    return token_a if token_a == token_b else f"{token_a} for {token_b}"


def attribution_heatmap(results: Sequence[AttributionResult]) -> Heatmap:
    """Return a heatmap of attributions as shares, one row per method and one column per word or token."""
    first = results[0]
    indices = [index for index, unit in enumerate(first.units) if not unit.special]
    units = [first.units[index] for index in indices]
    values = np.array([result.shares[indices] for result in results])
    drawing = HeatmapSpec(
        scale=Scale("diverging", -1, 1, "sqrt"),
        row_axis="method",
        column_axis="word" if first.question.words else "token",
        value_name="share",
        caption=f"Attribution of the {shorten(first.number)}",
        square=False,
        column_positions=positions(units),
        file_name="attribution",
    )
    names = [methods()[result.question.method].label for result in results]
    prompt = [column for column, index in enumerate(indices) if index in first.prompt_units]
    return Heatmap(values, names, mark_prompt(labels(units), prompt), drawing)


def head_attribution_heatmaps(result: HeadAttributionResult) -> list[Heatmap]:
    """Return two heatmaps by head: change of the output under ablation, and gradient-based importance."""
    end = Scale.from_zero(np.abs(result.changes), 0.0).high
    number = shorten(result.number)
    # Cells show only two decimals, so the small changes of a cosine are shown in hundredths.
    factor, unit = (100, ", hundredths") if end < 0.5 else (1, "")
    changes = head_grid(
        factor * result.changes,
        f"change{unit}",
        f"Change of the {number} when each head is ablated",
        Scale("diverging", -factor * end, factor * end),
        "head-attribution",
    )
    importance = head_grid(
        factor * result.importance,
        f"|output · gradient|{unit}",
        f"Gradient-based importance of each head for the {number}",
        Scale.from_zero(factor * result.importance, 0.0),
        "head-importance",
    )
    return [changes, importance]


def confusion_heatmap(result: EvaluateResult) -> Heatmap:
    """Return the confusion matrix of a text or token classifier as a heatmap."""
    names = [shorten(label) for label in result.labels]
    unit = "texts" if result.kind == CLASSES else "words"
    return Heatmap(
        result.confusion,
        names,
        names,
        HeatmapSpec(
            scale=Scale.from_zero(result.confusion, 0.0),
            row_axis="true label",
            column_axis="predicted label",
            value_name=unit,
            caption=f"{unit.capitalize()} by true and predicted label",
            decimals=0,
            file_name="confusion",
        ),
    )
