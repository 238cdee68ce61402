"""BERT Probe: open a transformer encoder and see what it does with your text.

>>> import bert_probe
>>> trace = bert_probe.load().trace("Almost before we knew it, we had left the ground.")
>>> bert_probe.Attention(layer=5).of(trace).table().shape
(14, 14)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bert_probe.analyses.ablation import Ablate, AblateEach
    from bert_probe.analyses.answer_change import AnswerChange
    from bert_probe.analyses.answers import FindAnswer
    from bert_probe.analyses.attention import Attention, AttentionLong
    from bert_probe.analyses.baseline import Baseline
    from bert_probe.analyses.context import Context
    from bert_probe.analyses.embedding import Embedding
    from bert_probe.analyses.evaluation import Evaluate
    from bert_probe.analyses.fill_mask import FillMask
    from bert_probe.analyses.find_heads import FindHeads
    from bert_probe.analyses.fragmentation import Fragmentation
    from bert_probe.analyses.fragmentation_change import FragmentationChange
    from bert_probe.analyses.head_change import HeadChange
    from bert_probe.analyses.head_matches import HeadMatches
    from bert_probe.analyses.head_means import HeadMeans
    from bert_probe.analyses.head_removal import HeadsRemoved
    from bert_probe.analyses.heads import Heads
    from bert_probe.analyses.layer_alikeness import LayerAlikeness
    from bert_probe.analyses.layer_map import LayerMap, LayerMapOfMany
    from bert_probe.analyses.lens import Lens
    from bert_probe.analyses.mask_evaluation import EvaluateMasks
    from bert_probe.analyses.minimal_pair import Compare, CompareRow
    from bert_probe.analyses.model_sizes import ModelSizes
    from bert_probe.analyses.neighbours import Neighbours
    from bert_probe.analyses.next_sentence import NextSentence
    from bert_probe.analyses.overview import Overview
    from bert_probe.analyses.padding import Padding
    from bert_probe.analyses.pair_jacobians import WhyAlike
    from bert_probe.analyses.parameter_change import ParameterChange
    from bert_probe.analyses.parameters import Parameters
    from bert_probe.analyses.patching import Patch
    from bert_probe.analyses.pooler import Pooler
    from bert_probe.analyses.positions import Positions
    from bert_probe.analyses.probes.layers import Probe
    from bert_probe.analyses.probes.relations import Relations
    from bert_probe.analyses.probes.trees import TreeProbe
    from bert_probe.analyses.projection import Projection
    from bert_probe.analyses.reach import Reach
    from bert_probe.analyses.sentence_similarity import SentenceSimilarity
    from bert_probe.analyses.sentences import Sentences
    from bert_probe.analyses.similarity import Similarity
    from bert_probe.analyses.steps import Steps
    from bert_probe.analyses.text_classes import ClassifyText
    from bert_probe.analyses.token_labels import LabelTokens
    from bert_probe.analyses.tokens import Tokens
    from bert_probe.analyses.tuned_lens import TuneLens
    from bert_probe.analyses.vector_change import VectorChange
    from bert_probe.analyses.vectors import Vectors
    from bert_probe.analyses.vocabulary import Vocabulary
    from bert_probe.analyses.why import Why
    from bert_probe.analyses.why_check import WhyCheck
    from bert_probe.analyses.why_heads import WhyHeads
    from bert_probe.analyses.why_means import WhyMeans
    from bert_probe.core.result import Result, save
    from bert_probe.corpus.attention_search import FindRows
    from bert_probe.corpus.build import make_store
    from bert_probe.corpus.head_rows import CorpusRows
    from bert_probe.corpus.head_summary import CorpusHeads
    from bert_probe.corpus.histograms import CorpusHistograms
    from bert_probe.corpus.ingest import Gather
    from bert_probe.corpus.query import Query
    from bert_probe.corpus.search.contexts import Near
    from bert_probe.corpus.store import Store, open_store
    from bert_probe.corpus.verify import verify_store
    from bert_probe.errors import (
        CheckpointError,
        ProbeError,
        SelectionError,
        StoreError,
        TextError,
        UnavailableError,
    )
    from bert_probe.model.checkpoint import Checkpoint
    from bert_probe.model.config_alone import open_config
    from bert_probe.model.external_attention import from_attention
    from bert_probe.model.from_model import wrap
    from bert_probe.model.loading import load
    from bert_probe.model.trace import Trace
    from bert_probe.notebook.frame import Frame
    from bert_probe.notebook.live import HeadView
    from bert_probe.notebook.views import head_view, model_view, show
    from bert_probe.text.labeled_texts import read_labelled
    from bert_probe.text.sentence_files import read_sentences
    from bert_probe.text.tagged_sentences import read_tagged
    from bert_probe.training.train import Teach

__version__ = "0.1.0"

__all__ = [
    "Ablate",
    "AblateEach",
    "AnswerChange",
    "Attention",
    "AttentionLong",
    "Baseline",
    "Checkpoint",
    "CheckpointError",
    "ClassifyText",
    "Compare",
    "CompareRow",
    "Context",
    "CorpusHeads",
    "CorpusHistograms",
    "CorpusRows",
    "Embedding",
    "Evaluate",
    "EvaluateMasks",
    "FillMask",
    "FindAnswer",
    "FindHeads",
    "FindRows",
    "Fragmentation",
    "FragmentationChange",
    "Frame",
    "Gather",
    "HeadChange",
    "HeadMatches",
    "HeadMeans",
    "HeadView",
    "Heads",
    "HeadsRemoved",
    "LabelTokens",
    "LayerAlikeness",
    "LayerMap",
    "LayerMapOfMany",
    "Lens",
    "ModelSizes",
    "Near",
    "Neighbours",
    "NextSentence",
    "Overview",
    "Padding",
    "ParameterChange",
    "Parameters",
    "Patch",
    "Pooler",
    "Positions",
    "Probe",
    "ProbeError",
    "Projection",
    "Query",
    "Reach",
    "Relations",
    "Result",
    "SelectionError",
    "SentenceSimilarity",
    "Sentences",
    "Similarity",
    "Steps",
    "Store",
    "StoreError",
    "Teach",
    "TextError",
    "Tokens",
    "Trace",
    "TreeProbe",
    "TuneLens",
    "UnavailableError",
    "VectorChange",
    "Vectors",
    "Vocabulary",
    "Why",
    "WhyAlike",
    "WhyCheck",
    "WhyHeads",
    "WhyMeans",
    "from_attention",
    "head_view",
    "load",
    "make_store",
    "model_view",
    "open_config",
    "open_store",
    "read_labelled",
    "read_sentences",
    "read_tagged",
    "save",
    "show",
    "verify_store",
    "wrap",
]

_HOMES = {
    "Ablate": "analyses.ablation",
    "AblateEach": "analyses.ablation",
    "AnswerChange": "analyses.answer_change",
    "Attention": "analyses.attention",
    "AttentionLong": "analyses.attention",
    "Baseline": "analyses.baseline",
    "Checkpoint": "model.checkpoint",
    "CheckpointError": "errors",
    "ClassifyText": "analyses.text_classes",
    "Compare": "analyses.minimal_pair",
    "CompareRow": "analyses.minimal_pair",
    "Context": "analyses.context",
    "CorpusHeads": "corpus.head_summary",
    "CorpusHistograms": "corpus.histograms",
    "CorpusRows": "corpus.head_rows",
    "Embedding": "analyses.embedding",
    "Evaluate": "analyses.evaluation",
    "EvaluateMasks": "analyses.mask_evaluation",
    "FillMask": "analyses.fill_mask",
    "FindAnswer": "analyses.answers",
    "FindHeads": "analyses.find_heads",
    "FindRows": "corpus.attention_search",
    "Fragmentation": "analyses.fragmentation",
    "FragmentationChange": "analyses.fragmentation_change",
    "Frame": "notebook.frame",
    "Gather": "corpus.ingest",
    "HeadChange": "analyses.head_change",
    "HeadMatches": "analyses.head_matches",
    "HeadMeans": "analyses.head_means",
    "HeadView": "notebook.live",
    "Heads": "analyses.heads",
    "HeadsRemoved": "analyses.head_removal",
    "LabelTokens": "analyses.token_labels",
    "LayerAlikeness": "analyses.layer_alikeness",
    "LayerMap": "analyses.layer_map",
    "LayerMapOfMany": "analyses.layer_map",
    "Lens": "analyses.lens",
    "ModelSizes": "analyses.model_sizes",
    "Near": "corpus.search.contexts",
    "Neighbours": "analyses.neighbours",
    "NextSentence": "analyses.next_sentence",
    "Overview": "analyses.overview",
    "Padding": "analyses.padding",
    "ParameterChange": "analyses.parameter_change",
    "Parameters": "analyses.parameters",
    "Patch": "analyses.patching",
    "Pooler": "analyses.pooler",
    "Positions": "analyses.positions",
    "Probe": "analyses.probes.layers",
    "ProbeError": "errors",
    "Projection": "analyses.projection",
    "Query": "corpus.query",
    "Reach": "analyses.reach",
    "Relations": "analyses.probes.relations",
    "Result": "core.result",
    "SelectionError": "errors",
    "SentenceSimilarity": "analyses.sentence_similarity",
    "Sentences": "analyses.sentences",
    "Similarity": "analyses.similarity",
    "Steps": "analyses.steps",
    "Store": "corpus.store",
    "StoreError": "errors",
    "Teach": "training.train",
    "TextError": "errors",
    "Tokens": "analyses.tokens",
    "Trace": "model.trace",
    "TreeProbe": "analyses.probes.trees",
    "TuneLens": "analyses.tuned_lens",
    "UnavailableError": "errors",
    "VectorChange": "analyses.vector_change",
    "Vectors": "analyses.vectors",
    "Vocabulary": "analyses.vocabulary",
    "Why": "analyses.why",
    "WhyAlike": "analyses.pair_jacobians",
    "WhyCheck": "analyses.why_check",
    "WhyHeads": "analyses.why_heads",
    "WhyMeans": "analyses.why_means",
    "from_attention": "model.external_attention",
    "head_view": "notebook.views",
    "load": "model.loading",
    "make_store": "corpus.build",
    "model_view": "notebook.views",
    "open_config": "model.config_alone",
    "open_store": "corpus.store",
    "read_labelled": "text.labeled_texts",
    "read_sentences": "text.sentence_files",
    "read_tagged": "text.tagged_sentences",
    "save": "core.result",
    "show": "notebook.views",
    "verify_store": "corpus.verify",
    "wrap": "model.from_model",
}
"""Name → the module it lies in, which is imported when the name is first used: most of them need torch, which
alone takes seconds."""

if not TYPE_CHECKING:  # a function of this name would tell type checkers that any name can be had

    def __getattr__(name: str) -> object:
        """A public name, from now on held by this module itself."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
