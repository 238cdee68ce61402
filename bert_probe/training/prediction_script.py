"""Create the script that applies a saved head on the sentence vector without this package."""

from __future__ import annotations

from bert_probe.model.outputs import OutputHead

SCRIPT_FILE = "predict.py"

_SCRIPT = '''"""Print {meaning} for each text of the command line, as JSON. Needs sentence-transformers."""
import json, pathlib, sys
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
folder = pathlib.Path(__file__).resolve().parent
labels = json.loads((folder / "classification_head/labels.json").read_text(encoding="utf-8"))["labels"]
head = load_file(folder / "classification_head/model.safetensors")
vectors = SentenceTransformer(str(folder), device="cpu").encode(sys.argv[1:], convert_to_tensor=True)
logits = vectors.to(head["linear.bias"]) @ head["linear.weight"].T + head["linear.bias"]
for text, row in zip(sys.argv[1:], logits{activation}.tolist()):
    print(json.dumps({{"text": text, "{name}": dict(zip(labels, row))}}))
'''

_OUTPUTS = {
    "single_label_classification": ("the probability of each label", ".softmax(dim=-1)", "probabilities"),
    "multi_label_classification": ("the probability of each label", ".sigmoid()", "probabilities"),
    "regression": ("the predicted number", "", "prediction"),
}
"""Problem type → what the script prints, the activation, and the name of the output."""


def prediction_script(head: OutputHead) -> str:
    """Return the Python script for a head on the sentence vector."""
    meaning, activation, name = _OUTPUTS[head.problem]
    return _SCRIPT.format(meaning=meaning, activation=activation, name=name)
