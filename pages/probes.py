"""Probes: what each layer knows of labels and of trees, and which heads find syntactic relations."""

from bert_probe.errors import ProbeError
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.probes import inputs, layers, relations, trees

PARTS = {"layers": "What each layer knows", "trees": "Trees", "relations": "Heads against a treebank"}
DRAWN = {"layers": layers.part, "trees": trees.part, "relations": relations.part}


def main() -> None:
    """The page."""
    blocks.heading(
        "Probes",
        "Give sentences whose words have tags or syntactic heads, or texts with a label each. What of that "
        "can be read off each layer, and which attention heads find it?",
    )
    checkpoint = workbench.checkpoint()
    request = workbench.request()
    part = state.pick("probes_part", "Part", PARTS, "layers")
    try:
        files = inputs.chosen()
        if files is None:
            inputs.formats()
        else:
            DRAWN[part](files, checkpoint, request.truncate)
    except ProbeError as error:
        blocks.refusal(error, "Mend the file and upload it again; the other one is kept.")


main()
