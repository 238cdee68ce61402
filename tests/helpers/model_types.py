"""Tiny checkpoints of additional transformers model types, and the features that work with each.

The results are listed in docs/models.md. Unlike the checkpoints in `families`, these checkpoints are only
opened and compared with the raw model.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import bert_probe
from bert_probe.analyses.retrieval.late_interaction import document_config, encode_tokens, query_config
from bert_probe.analyses.vectors.pooling import resolve_pooling
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from tests.helpers import families, multi_vector_models, sentence_models
from tests.helpers.families import BERT, DECODER, ROBERTA, TEXT, Family, byte_level, metaspace, wordpiece
from tests.helpers.raw import Raw

_decoder = partial(Family, tokenizer=byte_level, special=DECODER, is_causal=True)
_bert = partial(Family, tokenizer=wordpiece, special=BERT)
_roberta = partial(Family, tokenizer=byte_level, special=ROBERTA)
_pieces = partial(Family, tokenizer=metaspace, special=ROBERTA)

_GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
_WINDOW: dict[str, Any] = _GROUPED | {"sliding_window": 8}
_HEAD_16: dict[str, Any] = _GROUPED | {"head_dim": 16}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 160}
_EXPERTS: dict[str, Any] = _GROUPED | {"num_local_experts": 2, "num_experts_per_tok": 1}
_XLM: dict[str, Any] = {"emb_dim": 32, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 160}
_BART: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 160,
}
_T5: dict[str, Any] = {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 16, "d_ff": 48}
_POSITIONS: dict[str, Any] = {"max_position_embeddings": 162, "type_vocab_size": 1}

MODEL_TYPES: dict[str, Family] = {
    # Decoders
    "apertus": _decoder("ApertusConfig", settings=_GROUPED),
    "arcee": _decoder("ArceeConfig", settings=_GROUPED),
    "biogpt": _decoder("BioGptConfig", settings={}),
    "bitnet": _decoder("BitNetConfig", settings=_GROUPED),
    "bloom": _decoder("BloomConfig", settings={"n_layer": 3, "n_head": 4}),
    "codegen": _decoder("CodeGenConfig", settings=_GPT | {"rotary_dim": 4}),
    "cohere": _decoder("CohereConfig", settings=_GROUPED),
    "cohere2": _decoder("Cohere2Config", settings=_WINDOW),
    "ctrl": _decoder("CTRLConfig", settings=_GPT | {"dff": 48}),
    "diffllama": _decoder("DiffLlamaConfig", settings=_GROUPED),
    "doge": _decoder("DogeConfig", settings=_GROUPED),
    "ernie4_5": _decoder("Ernie4_5Config", settings=_GROUPED),
    "exaone4": _decoder("Exaone4Config", settings=_WINDOW),
    "falcon": _decoder("FalconConfig", settings={}),
    "gemma": _decoder("GemmaConfig", settings=_HEAD_16),
    "gemma2": _decoder(
        "Gemma2Config",
        settings=_HEAD_16 | {"query_pre_attn_scalar": 16, "sliding_window": 8, "attn_logit_softcapping": 2.0},
    ),
    "glm": _decoder("GlmConfig", settings=_HEAD_16 | {"pad_token_id": 0}),
    "glm4": _decoder("Glm4Config", settings=_HEAD_16 | {"pad_token_id": 0}),
    "gpt_bigcode": _decoder("GPTBigCodeConfig", settings=_GPT | {"n_inner": 48}),
    "gpt_oss": _decoder("GptOssConfig", settings=_EXPERTS | {"head_dim": 8, "sliding_window": 8}),
    "gptj": _decoder("GPTJConfig", settings=_GPT | {"rotary_dim": 4}),
    "granite": _decoder("GraniteConfig", settings=_GROUPED),
    "granitemoe": _decoder("GraniteMoeConfig", settings=_EXPERTS),
    "helium": _decoder("HeliumConfig", settings=_GROUPED | {"head_dim": 8}),
    "jais2": _decoder("Jais2Config", settings=_GROUPED),
    "lfm2": _decoder(
        "Lfm2Config",
        settings=_GROUPED | {"layer_types": ["full_attention", "conv", "full_attention"]},
    ),
    "mamba": _decoder("MambaConfig", settings={}),
    "ministral": _decoder("MinistralConfig", settings=_WINDOW | {"head_dim": 8}),
    "mixtral": _decoder("MixtralConfig", settings=_EXPERTS),
    "mpt": _decoder("MptConfig", settings={"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 160}),
    "nemotron": _decoder("NemotronConfig", settings=_GROUPED),
    "olmo": _decoder("OlmoConfig", settings=_GROUPED),
    "olmo2": _decoder("Olmo2Config", settings=_GROUPED),
    "olmo3": _decoder("Olmo3Config", settings=_WINDOW),
    "olmoe": _decoder("OlmoeConfig", settings=_GROUPED | {"num_experts": 2, "num_experts_per_tok": 1}),
    "openai-gpt": _decoder("OpenAIGPTConfig", settings=_GPT),
    "opt": _decoder("OPTConfig", settings={"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "persimmon": _decoder("PersimmonConfig", settings={}),
    "phi": _decoder("PhiConfig", settings={}),
    "phi3": _decoder("Phi3Config", settings=_GROUPED | {"pad_token_id": 0}),
    "qwen3_moe": _decoder(
        "Qwen3MoeConfig",
        settings=_HEAD_16 | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32},
    ),
    "recurrent_gemma": _decoder("RecurrentGemmaConfig", settings={}),
    "seed_oss": _decoder("SeedOssConfig", settings=_GROUPED | {"head_dim": 8}),
    "smollm3": _decoder("SmolLM3Config", settings=_GROUPED),
    "stablelm": _decoder("StableLmConfig", settings=_GROUPED),
    "starcoder2": _decoder("Starcoder2Config", settings=_GROUPED),
    "vaultgemma": _decoder(
        "VaultGemmaConfig", settings=_HEAD_16 | {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0}
    ),
    "xglm": _decoder(
        "XGLMConfig",
        settings={
            "d_model": 32,
            "ffn_dim": 48,
            "num_layers": 3,
            "attention_heads": 4,
            "max_position_embeddings": 160,
        },
    ),
    # Encoders
    "bert-generation": _pieces("BertGenerationConfig", settings={}),
    "big_bird": _pieces("BigBirdConfig", settings={"block_size": 4}),
    "canine": _bert("CanineConfig", settings={}),
    "data2vec-text": _roberta("Data2VecTextConfig", settings=_POSITIONS),
    "esm": _bert("EsmConfig", settings={"pad_token_id": 0, "mask_token_id": 4}),
    "fnet": _bert("FNetConfig", settings={}),
    "ibert": _roberta("IBertConfig", settings=_POSITIONS),
    "lilt": _roberta("LiltConfig", settings=_POSITIONS | {"hidden_size": 48}),
    "markuplm": _bert("MarkupLMConfig", settings={}),
    "mra": _bert("MraConfig", settings={}),
    "nystromformer": _bert("NystromformerConfig", settings={}),
    "roc_bert": _bert("RoCBertConfig", settings={}),
    "splinter": _bert("SplinterConfig", settings={}),
    "squeezebert": _bert("SqueezeBertConfig", settings={"embedding_size": 32}),
    "tapas": _bert("TapasConfig", settings={}),
    "visual_bert": _bert("VisualBertConfig", settings={}),
    "xmod": _pieces(
        "XmodConfig", settings=_POSITIONS | {"languages": ["en_XX"], "default_language": "en_XX"}
    ),
    "yoso": _bert("YosoConfig", settings={}),
    # The following types are encoders of encoder-decoder models.
    "bigbird_pegasus": _pieces("BigBirdPegasusConfig", settings=_BART),
    "blenderbot": _roberta("BlenderbotConfig", settings=_BART),
    "blenderbot-small": _roberta("BlenderbotSmallConfig", settings=_BART),
    "led": _roberta("LEDConfig", settings=_BART | {"attention_window": 8}),
    "longt5": _pieces("LongT5Config", settings=_T5),
    "m2m_100": _pieces("M2M100Config", settings=_BART),
    "marian": _pieces("MarianConfig", settings=_BART),
    "mbart": _pieces("MBartConfig", settings=_BART),
    "mvp": _roberta("MvpConfig", settings=_BART),
    "nllb-moe": _pieces("NllbMoeConfig", settings=_BART | {"num_experts": 2}),
    "pegasus": _pieces("PegasusConfig", settings=_BART),
    "plbart": _pieces("PLBartConfig", settings=_BART),
    "switch_transformers": _pieces("SwitchTransformersConfig", settings=_T5 | {"num_experts": 2}),
}
"""Name of a tiny checkpoint → its configuration. The types that all other tests use are in `families`."""


@dataclass(frozen=True)
class Outcome:
    """The features that work with a tiny checkpoint of a model type.

    Attributes:
        model_type: transformers' name of the type.
        works: "fully", "without queries, keys and values", or "refused".
        reason: the reason why a feature does not work; "" if all features work.
        attention: largest difference from raw transformers in an attention weight; None if refused.
        states: largest difference in a hidden state, relative to the largest value of its layer.
        dtype: dtype of the comparison: "float64" if the model runs in float64, otherwise "float32".
    """

    model_type: str
    works: str
    reason: str = ""
    attention: float | None = None
    states: float | None = None
    dtype: str = ""


def outcome(name: str) -> Outcome:
    """Build a tiny checkpoint of a model type, open it, and compare it with the raw model."""
    folder = Path(tempfile.mkdtemp(prefix="model-type-"))
    model_type = families.family_of(name).model_type
    try:
        families.build(name, folder)
        checkpoint = bert_probe.load(folder)
        dtype = "float64"
        try:
            checkpoint = _in_float64(folder)
            differences = _differences(checkpoint, Raw(folder, "float64"))
        # Use float32 for mixtures of experts, because transformers' code for them does not support float64.
        except (ProbeError, RuntimeError):
            dtype = "float32"
            differences = _differences(checkpoint, Raw(folder))
    except ProbeError as error:
        return Outcome(model_type, "refused", _short(str(error), folder))
    finally:
        shutil.rmtree(folder)
    description = checkpoint.description
    works = "fully" if description.shows_qkv else "without queries, keys and values"
    return Outcome(model_type, works, description.no_qkv, *differences, dtype)


def layout_difference(name: str) -> tuple[str, float]:
    """Save a sentence-transformers layout, and compare its vectors with `SentenceTransformer.encode`.

    Returns:
        A description of the layout, and the largest absolute difference between vectors in float64.
    """
    folder = Path(tempfile.mkdtemp(prefix="layout-"))
    try:
        families.build(sentence_models.LAYOUTS[name].family, folder / "encoder")
        saved = sentence_models.save(name, folder / "encoder", folder / "model")
        checkpoint = bert_probe.load(saved, dtype="float64")
        keep_float64(checkpoint.model)
        vectors = bert_probe.Sentences("model").of(checkpoint, [*families.SENTENCES]).vectors
        expected = sentence_models.reference(saved, "float64").encode([*families.SENTENCES])
        return str(resolve_pooling(checkpoint, "model")), float(np.abs(vectors - expected).max())
    finally:
        shutil.rmtree(folder)


def multi_vector_difference(name: str) -> tuple[str, float]:
    """Save a late-interaction layout, and compare its vectors with `MultiVectorEncoder`.

    Returns:
        A description of how documents are encoded, and the largest absolute difference in float64.
    """
    folder = Path(tempfile.mkdtemp(prefix="layout-"))
    try:
        families.build(multi_vector_models.LAYOUTS[name].family, folder / "encoder")
        saved = multi_vector_models.save(name, folder / "encoder", folder / "model")
        checkpoint = _in_float64(saved)
        model = multi_vector_models.reference(saved, "float64")
        differences = [0.0]
        sides = (
            (query_config(checkpoint), model.encode_query),
            (document_config(checkpoint), model.encode_document),
        )
        for config, encode in sides:
            for text in families.SENTENCES:
                vectors = encode_tokens(checkpoint, config, text).vectors
                expected = encode(text, convert_to_numpy=True)
                differences.append(float(np.abs(vectors - expected).max(initial=0)))
        return str(sides[1][0]), max(differences)
    finally:
        shutil.rmtree(folder)


def _in_float64(folder: Path) -> Checkpoint:
    checkpoint = bert_probe.load(folder, dtype="float64")
    keep_float64(checkpoint.model)
    checkpoint.trace(TEXT)
    return checkpoint


def _differences(checkpoint: Checkpoint, raw: Raw) -> tuple[float, float]:
    trace = checkpoint.trace(TEXT)
    expected = raw.arrays(trace.encoding)
    attention = max(
        float(np.abs(trace.attention(layer) - expected[f"attention {layer}"]).max())
        for layer in range(trace.layers)
    )
    states = max(
        float(np.abs(state - expected[f"state {layer}"]).max() / np.abs(expected[f"state {layer}"]).max())
        for layer, state in enumerate(trace.hidden_states)
    )
    return attention, states


def _short(message: str, folder: Path) -> str:
    """Return an error message without the temporary folder and the list of supported models."""
    return message.replace(str(folder), "the model").split(" Supported: ")[0]


def all_types() -> list[str]:
    """Return the sorted names of all tiny checkpoints: those of `families` and those of `MODEL_TYPES`."""
    return sorted(families.ALL_FAMILIES | MODEL_TYPES)
