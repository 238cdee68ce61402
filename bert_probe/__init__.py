"""BERT Probe: open a transformer encoder and see what it does with your text.

>>> import bert_probe
>>> trace = bert_probe.load().trace("Almost before we knew it, we had left the ground.")
>>> bert_probe.Attention(layer=5).of(trace).table().shape
(14, 14)
"""

from bert_probe.analyses.ablation import Ablation, SimilarityChange, ablate, each_head, similarity_change
from bert_probe.analyses.anatomy import EmbeddingAnatomy, PoolerReplay, embedding_anatomy, pooler_replay
from bert_probe.analyses.attention import Attention, AttentionLong, AttentionMap, AttentionMaps
from bert_probe.analyses.baseline import Baseline
from bert_probe.analyses.context import Context
from bert_probe.analyses.head_means import ProfileMeans, profile_sentences, read_sentences
from bert_probe.analyses.heads import Found, HeadProfiles, find_heads, head_profiles
from bert_probe.analyses.minimal_pair import Compare, CompareRow
from bert_probe.analyses.parameters import Parameter, Parameters, list_parameters, parameters_of_config
from bert_probe.analyses.projection import Map, pca_map, umap_map
from bert_probe.analyses.reach import Reach, TokenReach
from bert_probe.analyses.sentences import NearPair, SentenceVectors, sentence_vectors
from bert_probe.analyses.similarity import Similarity
from bert_probe.analyses.steps import (
    AttentionSteps,
    HeadOutputs,
    attention_steps,
    head_outputs,
    replay_differences,
)
from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    EmptyTextError,
    ExportError,
    NetworkError,
    NotFoundError,
    OutOfMemoryError,
    ProbeError,
    SelectionError,
    ShapeError,
    TextError,
    TokenizerError,
    TooLongError,
    UnavailableError,
    WeightsError,
)
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.encoding import Encoding, Token, Word
from bert_probe.model.given import from_attention
from bert_probe.model.loading import load
from bert_probe.model.trace import Trace
from bert_probe.model.wrapping import wrap
from bert_probe.results.result import Result, save
from bert_probe.results.sentence_tables import (
    map_table,
    nearest_table,
    sentence_vectors_table,
    sentences_table,
)
from bert_probe.results.step_tables import steps_table, steps_vectors_table
from bert_probe.results.tables import (
    ablation_table,
    ablation_tokens_table,
    anatomy_table,
    embeddings_table,
    found_table,
    heads_table,
    parameters_table,
    pooler_table,
    profile_means_table,
    similarity_change_table,
    tokens_table,
)
from bert_probe.text.sentence_files import sentences_from_file
from bert_probe.text.words import Unit, WordLens, find_token, find_word, word_lens, word_name

__version__ = "0.1.0"

__all__ = [
    "Ablation",
    "ArchitectureError",
    "Attention",
    "AttentionLong",
    "AttentionMap",
    "AttentionMaps",
    "AttentionSteps",
    "Baseline",
    "Checkpoint",
    "CheckpointError",
    "Compare",
    "CompareRow",
    "Context",
    "Description",
    "EmbeddingAnatomy",
    "EmptyTextError",
    "Encoding",
    "ExportError",
    "Found",
    "HeadOutputs",
    "HeadProfiles",
    "Map",
    "NearPair",
    "NetworkError",
    "NotFoundError",
    "OutOfMemoryError",
    "Parameter",
    "Parameters",
    "PoolerReplay",
    "ProbeError",
    "ProfileMeans",
    "Reach",
    "Result",
    "SelectionError",
    "SentenceVectors",
    "ShapeError",
    "Similarity",
    "SimilarityChange",
    "TextError",
    "Token",
    "TokenReach",
    "TokenizerError",
    "TooLongError",
    "Trace",
    "UnavailableError",
    "Unit",
    "WeightsError",
    "Word",
    "WordLens",
    "ablate",
    "ablation_table",
    "ablation_tokens_table",
    "anatomy_table",
    "attention_steps",
    "each_head",
    "embedding_anatomy",
    "embeddings_table",
    "find_heads",
    "find_token",
    "find_word",
    "found_table",
    "from_attention",
    "head_outputs",
    "head_profiles",
    "heads_table",
    "list_parameters",
    "load",
    "map_table",
    "nearest_table",
    "parameters_of_config",
    "parameters_table",
    "pca_map",
    "pooler_replay",
    "pooler_table",
    "profile_means_table",
    "profile_sentences",
    "read_sentences",
    "replay_differences",
    "save",
    "sentence_vectors",
    "sentence_vectors_table",
    "sentences_from_file",
    "sentences_table",
    "similarity_change",
    "similarity_change_table",
    "steps_table",
    "steps_vectors_table",
    "tokens_table",
    "umap_map",
    "word_lens",
    "word_name",
    "wrap",
]
