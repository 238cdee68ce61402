"""Earlier names of questions and URL parameters, so that view files and links with these names still open.

The changelog lists the names under "Renamed". A name is added here only if files or links contain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_QUESTIONS: Final = {
    "Ablate": "HeadAblation",
    "AblateEach": "HeadAblationSweep",
    "Baseline": "SimilarityBaseline",
    "Compare": "MinimalPair",
    "CompareRow": "MinimalPairRow",
    "Context": "WordInContext",
    "Fragmentation": "Fertility",
    "FragmentationChange": "FertilityChange",
    "HeadsRemoved": "HeadPruning",
    "LayerAlikeness": "LayerSimilarity",
    "LayerMap": "TokenMap",
    "LayerMapOfMany": "CorpusTokenMap",
    "Neighbours": "Neighbors",
    "Overview": "Highlights",
    "Padding": "PaddingEffect",
    "Patch": "ActivationPatching",
    "Projection": "SentenceMap",
    "Reach": "TokenRollout",
    "Steps": "AttentionSteps",
    "TreeProbe": "StructuralProbe",
    "Vectors": "HiddenStates",
    "Why": "Attribution",
    "WhyAlike": "SimilarityAttribution",
    "WhyCheck": "AttributionFaithfulness",
    "WhyHeads": "HeadAttribution",
    "WhyMeans": "FaithfulnessSummary",
}

_PARAMETERS: Final = {
    "batch_kept": "batch_texts_kept",
    "renormalise": "renormalize",
    "reach_token": "rollout_token",
    "why": "attribution",
    "why_words": "attribution_words",
    "why_target": "attribution_target",
    "why_at": "attribution_at",
    "why_method": "attribution_method",
    "why_rows": "faithfulness_rows",
    "why_heads": "attribution_heads",
}

_VALUES: Final = {
    ("probes_part", "trees"): "structural_probe",
    ("sentences_part", "cosines"): "scores",
    ("show", "reach"): "rollout",
    ("similarity_part", "cosine"): "score",
}
"""(URL parameter, earlier value) → value."""

_MOVED: Final = {("sentences", source): "sentences_source" for source in ("sample", "paste", "file")}
"""(earlier URL parameter, value) → URL parameter. The parameter is still used for other values."""


def current_question(name: str) -> str:
    """Return the current name of a question; earlier names are translated, all others are unchanged."""
    return _QUESTIONS.get(name, name)


def current_parameters(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return URL parameters with earlier names and values replaced; current names take precedence."""
    renamed = {
        _PARAMETERS[key]: value
        for key, value in parameters.items()
        if key in _PARAMETERS and _PARAMETERS[key] not in parameters
    }
    current = renamed | {
        _MOVED.get((key, value), key): value for key, value in parameters.items() if key not in _PARAMETERS
    }
    return {key: _VALUES.get((key, value), value) for key, value in current.items()}
