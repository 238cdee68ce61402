"""Write docs/models.md: the features that work with each model type, measured on tiny checkpoints.

.venv/bin/python scripts/models.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import sentence_transformers
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.helpers import multi_vector_models
from tests.helpers.model_types import (
    Outcome,
    all_types,
    layout_difference,
    multi_vector_difference,
    outcome,
)
from tests.helpers.sentence_models import LAYOUTS

TARGET = Path(__file__).parents[1] / "docs" / "models.md"

INTRODUCTION = """# Models

BERT Probe opens text models of `transformers` with full attention matrices. When a model is opened, it is run
on a short text to find out what can be shown.

```bash
bert-probe check MODEL          # a folder or a Hub ID: what works, what does not, and why
bert-probe convert MODEL --out FOLDER   # if its weights are only pickled (pytorch_model.bin)
```

Model code in a repository (`auto_map` in config.json) is never run. Configs that were written for such code
are translated if transformers has the architecture: GTE (`model_type: "new"`, with NTK scaling), NomicBERT
(`n_embd`, `n_layer`, …) and Jina v3 without LoRA adapters. transformers reads the weights under their
original names; a missing, unused or differing tensor is an error, and so is a setting that transformers'
model does not have. With adapters, use jinaai/jina-embeddings-v3-hf. In other repositories with model code,
the numbers are those of transformers' class for the `model_type`, and a note says so.
"""

POPULAR: dict[str, tuple[str, ...]] = {
    "bert": (
        "sentence-transformers/all-MiniLM-L6-v2",
        "sentence-transformers/all-MiniLM-L12-v2",
        "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        "sentence-transformers/LaBSE",
        "google-bert/bert-base-uncased",
        "google-bert/bert-base-cased",
        "google-bert/bert-large-uncased",
        "google-bert/bert-base-multilingual-cased",
        "BAAI/bge-small-en-v1.5",
        "BAAI/bge-base-en-v1.5",
        "BAAI/bge-large-en-v1.5",
        "intfloat/e5-base-v2",
        "intfloat/multilingual-e5-small",
        "thenlper/gte-base",
        "thenlper/gte-large",
        "mixedbread-ai/mxbai-embed-large-v1",
        "Snowflake/snowflake-arctic-embed-m",
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "colbert-ir/colbertv2.0",
        "dslim/bert-base-NER",
        "ProsusAI/finbert",
        "emilyalsentzer/Bio_ClinicalBERT",
        "Rostlab/prot_bert",
    ),
    "roberta": (
        "FacebookAI/roberta-base",
        "FacebookAI/roberta-large",
        "sentence-transformers/all-distilroberta-v1",
        "cardiffnlp/twitter-roberta-base-sentiment-latest",
        "deepset/roberta-base-squad2",
        "microsoft/codebert-base",
    ),
    "distilbert": (
        "distilbert/distilbert-base-uncased",
        "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
    ),
    "xlm-roberta": (
        "FacebookAI/xlm-roberta-base",
        "FacebookAI/xlm-roberta-large",
        "intfloat/multilingual-e5-base",
        "intfloat/multilingual-e5-large",
        "sentence-transformers/paraphrase-multilingual-mpnet-base-v2",
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        "BAAI/bge-m3",
        "BAAI/bge-reranker-v2-m3",
    ),
    "mpnet": ("sentence-transformers/all-mpnet-base-v2", "sentence-transformers/multi-qa-mpnet-base-dot-v1"),
    "modernbert": ("answerdotai/ModernBERT-base", "Alibaba-NLP/gte-modernbert-base"),
    "electra": ("google/electra-base-discriminator",),
    "albert": ("albert/albert-base-v2",),
    "camembert": ("almanach/camembert-base",),
    "deberta-v2": ("microsoft/deberta-v3-base", "cross-encoder/nli-deberta-v3-base"),
    "esm": ("facebook/esm2_t6_8M_UR50D", "facebook/esm2_t33_650M_UR50D"),
    "qwen3": ("Qwen/Qwen3-Embedding-0.6B", "Qwen/Qwen3-Embedding-4B", "Qwen/Qwen3-Embedding-8B"),
    "qwen2": ("Alibaba-NLP/gte-Qwen2-1.5B-instruct",),
    "mistral": ("intfloat/e5-mistral-7b-instruct",),
    "gemma2": ("google/gemma-2-2b",),
    "gemma3_text": ("google/embeddinggemma-300m",),
    "gte": (
        "Alibaba-NLP/gte-multilingual-base",
        "Alibaba-NLP/gte-base-en-v1.5",
        "Alibaba-NLP/gte-large-en-v1.5",
        "Snowflake/snowflake-arctic-embed-m-v2.0",
    ),
    "nomic_bert": ("nomic-ai/nomic-embed-text-v1.5",),
    "jina_embeddings_v3": ("jinaai/jina-embeddings-v3-hf",),
    "longformer": ("allenai/longformer-base-4096",),
    "big_bird": ("google/bigbird-roberta-base",),
    "bloom": ("bigscience/bloom-560m",),
    "t5": ("sentence-transformers/gtr-t5-base", "sentence-transformers/sentence-t5-base"),
    "clip_text_model": ("openai/clip-vit-base-patch32",),
    "siglip_text_model": ("google/siglip-base-patch16-224",),
    "gpt2": ("openai-community/gpt2",),
}
"""Model type → frequently downloaded models with this `model_type` in their published config."""


def main() -> None:
    """Test every model type in two processes, and write the document."""
    with ProcessPoolExecutor(2) as pool:
        outcomes = dict(zip(all_types(), pool.map(outcome, all_types()), strict=True))
        layouts = dict(zip(LAYOUTS, pool.map(layout_difference, LAYOUTS), strict=True))
        names = multi_vector_models.LAYOUTS
        late = dict(zip(names, pool.map(multi_vector_difference, names), strict=True))
    text = "\n".join([INTRODUCTION, *lines(outcomes, layouts, late), ""])
    TARGET.write_text(text, encoding="utf-8")


def lines(
    outcomes: dict[str, Outcome],
    layouts: dict[str, tuple[str, float]],
    late: dict[str, tuple[str, float]],
) -> Iterator[str]:
    """Yield the lines of the document after its introduction.

    Args:
        outcomes: name of a tiny checkpoint → what works with it.
        layouts: name of a sentence-transformers layout → its description, and the largest difference.
        late: name of a late-interaction layout → its description, and the largest difference.
    """
    opened = {name: result for name, result in outcomes.items() if result.works != "refused"}
    full = sum(result.works == "fully" for result in opened.values())
    yield "## Model types"
    yield ""
    yield (
        f"{len(outcomes)} recipes of tiny models with random weights were opened with transformers "
        f"{transformers.__version__}: {len(opened)} open, {full} of them fully. *Attention* and *hidden "
        "states* are the largest differences from raw `transformers` on a sentence, for hidden states "
        "relative to the largest value of the layer, in float64 unless marked. `make models` writes this "
        "file."
    )
    yield ""
    yield "| model type | opens | attention | hidden states | what is missing |"
    yield "|---|---|---|---|---|"
    for name, result in outcomes.items():
        label = result.model_type if result.model_type == name else f"{result.model_type} ({name})"
        mark = " (float32)" if result.dtype == "float32" else ""
        numbers = [
            "" if value is None else f"{value:.0e}{mark}" for value in (result.attention, result.states)
        ]
        yield f"| {label} | {result.works} | {numbers[0]} | {numbers[1]} | {result.reason} |"
    yield ""
    yield "## Layouts of sentence-transformers"
    yield ""
    yield (
        f"Tiny checkpoints saved by sentence-transformers {sentence_transformers.__version__}, and the "
        "largest difference of a vector's value from `SentenceTransformer.encode` in float64. "
        "WordWeights is refused with an error."
    )
    yield ""
    yield "| layout | description on the pages | difference |"
    yield "|---|---|---|"
    for name, (text, difference) in layouts.items():
        yield f"| {name} | {text} | {difference:.0e} |"
    yield ""
    yield from _late_interaction(late)
    yield "## Models"
    yield ""
    yield (
        "The table states what is expected of frequently downloaded models, from the type in their published "
        "configs. A model whose weights are only pickled must be converted first; `bert-probe check` reports "
        "it."
    )
    yield ""
    yield "| model | type | opens |"
    yield "|---|---|---|"
    for model_type, names in POPULAR.items():
        for name in names:
            yield f"| {name} | {model_type} | {outcomes[model_type].works} |"


def _late_interaction(layouts: dict[str, tuple[str, float]]) -> Iterator[str]:
    yield "## Late-interaction models"
    yield ""
    yield (
        "Tiny checkpoints in the formats of sentence-transformers, PyLate 1.6.0 and the original ColBERT, "
        "and the largest difference of a value of a token's vector from `encode_query` and `encode_document` "
        "of `MultiVectorEncoder` in float64. HierarchicalTokenPooling, and the expansion of queries at their "
        "beginning, are refused with an error."
    )
    yield ""
    yield "| layout | documents | difference |"
    yield "|---|---|---|"
    for name, (text, difference) in layouts.items():
        yield f"| {name} | {text} | {difference:.0e} |"
    yield ""


if __name__ == "__main__":
    main()
