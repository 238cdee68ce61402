"""Heatmap of the contacts between residues."""

import numpy as np

from bert_probe.analyses.attention.contacts import ContactsResult
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.palette import Scale
from bert_probe.views.text import labels, positions


def contacts_title(result: ContactsResult) -> str:
    """Return the title of a contact map, which states whether its values are predictions."""
    if result.is_prediction:
        return "Predicted contacts"
    layer, head = result.question.layer, result.question.head
    if layer is None:
        place = "mean of all heads"
    else:
        place = f"layer {layer + 1}, " + ("mean of its heads" if head == "mean" else f"head {int(head) + 1}")
    return f"Not a contact prediction: APC-corrected attention, {place}"


def contacts_heatmap(result: ContactsResult) -> Heatmap:
    """Return a heatmap of the contact values of all pairs of residues.

    For attention, the color scale is fitted to pairs with at least the minimum separation, because
    neighboring residues have much larger values.
    """
    numbers = result.numbers
    is_far = np.abs(numbers[:, None] - numbers) >= result.question.separation
    far = result.values[is_far & np.isfinite(result.values)]
    scale = Scale("sequential", 0, 1)
    if not result.is_prediction:
        scale = Scale.around_zero(far if far.size else np.ones(1))
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="residue",
        column_axis="residue",
        value_name=result.value_name,
        caption=contacts_title(result),
        whole=True,
        row_positions=positions(result.residues),
        column_positions=positions(result.residues),
        file_name="contacts",
    )
    return Heatmap(result.values, labels(result.residues), labels(result.residues), drawing)
