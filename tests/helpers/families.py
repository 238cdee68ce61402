"""Tiny checkpoints of many families, built with seeded random weights and tokenizers trained here.

Random weights of the default size give nearly uniform attention, which would hide errors.
So all matrices are drawn larger, and every vector (bias, LayerNorm) differs from its initial value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import MODEL_MAPPING, PreTrainedTokenizerFast
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from tests.helpers.gate import prove_unless

SENTENCES = (
    "Almost before we knew it, we had left the ground.",
    "The unknown holds its grounds, and nobody can say why.",
    "A small boat crosses the wide river at night.",
    "Three engineers repaired the old bridge in the rain.",
    "Where does the path behind the mill lead to?",
    "It isn't easy to read a map without any light!",
    "Çelik köprüler naïve café – Straße, 東京 2024.",
)

TEXT = "Almost before we knew it, we had left the ground."
PAIR = "Where does the wide river lead to?"
LONG = " ".join(SENTENCES)


@dataclass(frozen=True)
class Special:
    """The special tokens of a family, and how they are added to single texts and pairs."""

    cls: str
    sep: str
    pad: str
    unk: str
    mask: str
    middle: str = "{sep}"
    second_segment: int = 1

    @property
    def ordered(self) -> list[str]:
        """Return the special tokens in the order of their ids: [PAD] first, or <s> first as in RoBERTa."""
        if self.cls == "<s>":
            return [self.cls, self.pad, self.sep, self.unk, self.mask]
        return [self.pad, self.unk, self.cls, self.sep, self.mask]

    def processor(self, tokenizer: Tokenizer) -> Any:
        """Return a post-processor that adds the special tokens to single texts and pairs."""
        middle = self.middle.format(sep=f"{self.sep}:0")
        second = self.second_segment
        return processors.TemplateProcessing(
            single=f"{self.cls}:0 $A:0 {self.sep}:0",
            pair=f"{self.cls}:0 $A:0 {middle} $B:{second} {self.sep}:{second}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (self.cls, self.sep)],
        )


BERT = Special("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")
ROBERTA = Special("<s>", "</s>", "<pad>", "<unk>", "<mask>", middle="{sep} {sep}", second_segment=0)
DECODER = Special("<s>", "</s>", "<pad>", "<unk>", "<mask>", second_segment=0)
MODERN = Special("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]", second_segment=0)


def wordpiece(special: Special) -> Tokenizer:
    """Build a tokenizer like BERT's: lower case, no accents, split at spaces and punctuation, ## tokens.

    Its vocabulary is fixed here, because the trainer breaks ties at random.
    """
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    marks = [".", ",", "!", "?", "'", "–", "-", "[", "]", "東", "ß", "é"]
    pieces = ["##" + letter for letter in [*letters, "ß", "京"]]
    pieces += ["##ing", "##ed", "##s", "##er", "##eers", "##est", "##nown", "##ly", "##ross", "##es"]
    words = "almost before we knew it had left the ground un hold its boat c wide river at night lead to do"
    vocabulary = [*special.ordered, *letters, *marks, *pieces, *(w for w in words.split() if len(w) > 1)]
    model = models.WordPiece(
        {token: row for row, token in enumerate(dict.fromkeys(vocabulary))}, unk_token=special.unk
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _finish(tokenizer, special)


def byte_level(special: Special) -> Tokenizer:
    """Train a byte-level BPE tokenizer like RoBERTa's, in which a word includes its leading space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        # The vocabulary has room for every word of the sentences, because the trainer breaks ties at random.
        vocab_size=1000,
        special_tokens=special.ordered,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    return _train(tokenizer, trainer, special)


def metaspace(special: Special) -> Tokenizer:
    """Train a unigram tokenizer like SentencePiece's, in which a word starts with ▁."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=special.ordered, unk_token=special.unk, show_progress=False
    )
    return _train(tokenizer, trainer, special)


def _train(tokenizer: Tokenizer, trainer: Any, special: Special) -> Tokenizer:
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return _finish(tokenizer, special)


def _finish(tokenizer: Tokenizer, special: Special) -> Tokenizer:
    tokenizer.add_special_tokens(special.ordered)
    tokenizer.post_processor = special.processor(tokenizer)
    return tokenizer


def fast(tokenizer: Tokenizer, special: Special, **options: Any) -> PreTrainedTokenizerFast:
    """Wrap a tokenizer in the class that transformers saves."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token=special.cls,
        sep_token=special.sep,
        pad_token=special.pad,
        unk_token=special.unk,
        mask_token=special.mask,
        **options,
    )


@dataclass(frozen=True)
class Family:
    """The configuration of a tiny model of a family.

    Attributes:
        config: name of transformers' config class.
        tokenizer: trains a tokenizer of the family's type.
        special: special tokens of the tokenizer.
        settings: config values that differ from `COMMON`.
        shows_qkv: whether its queries, keys and values can be recorded.
        is_causal: whether no token attends to later tokens.
    """

    config: str
    tokenizer: Callable[[Special], Tokenizer]
    special: Special
    settings: dict[str, Any]
    shows_qkv: bool = True
    is_causal: bool = False

    @property
    def model_type(self) -> str:
        """Return the family's `model_type` in transformers."""
        return str(self.config_class.model_type)

    @property
    def is_available(self) -> bool:
        """Return whether the installed transformers has the family."""
        return hasattr(transformers, self.config)

    @property
    def config_class(self) -> Any:
        """Return transformers' config class; skip the test if the installed version does not have it."""
        if not self.is_available:
            pytest.skip(f"transformers {transformers.__version__} has no {self.config}")
        return getattr(transformers, self.config)


COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 160,
}
_GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
# Layers 1 and 3 attend to a window of 8 tokens, layer 2 to all.
_GEMMA: dict[str, Any] = _GROUPED | {
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_T5: dict[str, Any] = {"d_model": 32, "num_layers": 3, "num_heads": 4, "d_kv": 16, "d_ff": 48}
# Layer 2 of 3 attends to the token itself and the 7 before it.
_GPT_NEO: dict[str, Any] = {
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "max_position_embeddings": 160,
    "attention_types": [[["global", "local", "global"], 1]],
    "window_size": 8,
}
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
# The soft cap is low, so that it changes the scores of the tiny model.
_T5GEMMA_PART: dict[str, Any] = COMMON | _GEMMA | {"attn_logit_softcapping": 2.0}
_T5GEMMA: dict[str, Any] = {"encoder": _T5GEMMA_PART, "decoder": _T5GEMMA_PART}
_WITH_TWO_MORE_POSITIONS: dict[str, Any] = {"max_position_embeddings": 162, "type_vocab_size": 1}

FAMILIES: dict[str, Family] = {
    "bert": Family("BertConfig", wordpiece, BERT, {}),
    "roberta": Family("RobertaConfig", byte_level, ROBERTA, _WITH_TWO_MORE_POSITIONS),
    "distilbert": Family(
        "DistilBertConfig",
        wordpiece,
        BERT,
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 160},
    ),
    "electra": Family("ElectraConfig", wordpiece, BERT, {"embedding_size": 20}),
    "albert": Family("AlbertConfig", metaspace, BERT, {"embedding_size": 20}),
    "camembert": Family("CamembertConfig", metaspace, ROBERTA, _WITH_TWO_MORE_POSITIONS),
    "xlm-roberta": Family("XLMRobertaConfig", metaspace, ROBERTA, _WITH_TWO_MORE_POSITIONS),
    "mobilebert": Family(
        "MobileBertConfig", wordpiece, BERT, {"embedding_size": 20, "intra_bottleneck_size": 16}
    ),
    "modernbert": Family(
        "ModernBertConfig",
        byte_level,
        MODERN,
        # Layer 1 of 3 attends globally, the others to eight tokens on each side.
        {"local_attention": 16, "global_attn_every_n_layers": 3},
    ),
    "nomic_bert": Family("NomicBertConfig", wordpiece, BERT, {"head_dim": 8}),
    "eurobert": Family(
        "EuroBertConfig", byte_level, MODERN, {"num_key_value_heads": 2, "head_dim": 8, "mask_token_id": 4}
    ),
    "mpnet": Family("MPNetConfig", wordpiece, ROBERTA, {"max_position_embeddings": 162}),
    "deberta-v2": Family(
        "DebertaV2Config",
        metaspace,
        BERT,
        {
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
            "position_buckets": 16,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
    ),
    "ernie": Family("ErnieConfig", wordpiece, BERT, {}),
    "xlm-roberta-xl": Family("XLMRobertaXLConfig", metaspace, ROBERTA, _WITH_TWO_MORE_POSITIONS),
    "roberta-prelayernorm": Family(
        "RobertaPreLayerNormConfig", byte_level, ROBERTA, _WITH_TWO_MORE_POSITIONS
    ),
    "gte": Family("GteConfig", metaspace, ROBERTA, {}),
    "jina_embeddings_v3": Family("JinaEmbeddingsV3Config", metaspace, ROBERTA, {"type_vocab_size": 1}),
    "layoutlm": Family("LayoutLMConfig", wordpiece, BERT, {}),
}
"""Encoders of the types that are trained with masked-language modeling."""

MORE_FAMILIES: dict[str, Family] = {
    "qwen3": Family("Qwen3Config", byte_level, DECODER, _GROUPED | {"head_dim": 16}, is_causal=True),
    "qwen2": Family(
        "Qwen2Config",
        byte_level,
        DECODER,
        # The last of 3 layers attends to the token itself and the 7 before it.
        _GROUPED | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        is_causal=True,
    ),
    "mistral": Family("MistralConfig", byte_level, DECODER, _GROUPED | {"sliding_window": 8}, is_causal=True),
    "llama": Family("LlamaConfig", byte_level, DECODER, _GROUPED, is_causal=True),
    "gemma3_text": Family("Gemma3TextConfig", metaspace, DECODER, _GEMMA, is_causal=True),
    "embeddinggemma": Family(
        "Gemma3TextConfig", metaspace, DECODER, _GEMMA | {"use_bidirectional_attention": True}
    ),
    "modernbert-decoder": Family(
        "ModernBertDecoderConfig",
        byte_level,
        MODERN,
        {"local_attention": 16, "global_attn_every_n_layers": 3},
        is_causal=True,
    ),
    "gpt2": Family(
        "GPT2Config",
        byte_level,
        DECODER,
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48, "n_positions": 160},
        is_causal=True,
    ),
    "gpt_neox": Family("GPTNeoXConfig", byte_level, DECODER, {}, is_causal=True),
    "gpt_neo": Family("GPTNeoConfig", byte_level, DECODER, _GPT_NEO, is_causal=True),
    "t5": Family("T5Config", metaspace, ROBERTA, _T5),
    "mt5": Family("MT5Config", metaspace, ROBERTA, _T5),
    "umt5": Family("UMT5Config", metaspace, ROBERTA, _T5),
    "t5gemma": Family("T5GemmaConfig", metaspace, ROBERTA, _T5GEMMA),
    "bart": Family("BartConfig", byte_level, ROBERTA, _BART),
    "clip_text_model": Family("CLIPTextConfig", byte_level, DECODER, {}, is_causal=True),
    "siglip_text_model": Family("SiglipTextConfig", metaspace, DECODER, {}),
}
"""Decoders, encoders of encoder-decoder models, and text encoders of image-text models."""

_XLM: dict[str, Any] = {"emb_dim": 32, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 160}
EAGER_FAMILIES: dict[str, Family] = {
    "deberta": Family(
        "DebertaConfig",
        byte_level,
        MODERN,
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False},
    ),
    "roformer": Family("RoFormerConfig", wordpiece, BERT, {"embedding_size": 32}),
    "rembert": Family(
        "RemBertConfig", metaspace, BERT, {"input_embedding_size": 20, "output_embedding_size": 20}
    ),
    "megatron-bert": Family("MegatronBertConfig", wordpiece, BERT, {}),
    # ConvBERT replaces half of its 8 heads by convolutions.
    "convbert": Family("ConvBertConfig", wordpiece, BERT, {"embedding_size": 20, "num_attention_heads": 8}),
    "xlm": Family("XLMConfig", wordpiece, BERT, _XLM),
    "flaubert": Family("FlaubertConfig", wordpiece, BERT, _XLM),
    "longformer": Family(
        "LongformerConfig",
        byte_level,
        ROBERTA,
        # Each token attends to 4 tokens on each side.
        _WITH_TWO_MORE_POSITIONS | {"attention_window": 8},
        shows_qkv=False,
    ),
    "luke": Family("LukeConfig", byte_level, ROBERTA, _WITH_TWO_MORE_POSITIONS | {"entity_vocab_size": 8}),
}
"""More encoders whose attention does not go through transformers' attention interface."""

ALL_FAMILIES = FAMILIES | MORE_FAMILIES | EAGER_FAMILIES

_OWN_NAMES = {"d_model", "emb_dim", "encoder", "n_embd", "n_layers", "num_layers"}
"""Settings of families whose sizes do not have the names in `COMMON`."""

REPRESENTATIVE = ("albert", "bert", "eurobert", "modernbert", "mpnet", "roberta")
"""Families that `make test` runs every check on; `make prove` runs every check on all of them.

- bert: learned positions, two segments, WordPiece.
- roberta: positions counted from 2, one segment, byte-level BPE.
- albert: layers that share their weights, factorized embeddings, a unigram tokenizer.
- modernbert: norms before the layers, rotary positions, local attention, one matrix for query, key and value.
- eurobert: keys and values that are shared by groups of heads, RMSNorm, no biases.
- mpnet: relative positions, and attention that does not go through transformers' attention interface.
"""


def representative(names: Iterable[str]) -> list[Any]:
    """Return family names as test parameters. Names outside `REPRESENTATIVE` are marked ``prove``."""
    return prove_unless(REPRESENTATIVE, names)


def family_of(name: str) -> Family:
    """Return the configuration of a family, or of a model type in `model_types`."""
    from tests.helpers.model_types import MODEL_TYPES

    return ALL_FAMILIES.get(name) or MODEL_TYPES[name]


def config(name: str, **changes: Any) -> Any:
    """Return the config of a tiny model; ``changes`` override the family's own settings."""
    family = family_of(name)
    tokenizer = family.tokenizer(family.special)
    common = {} if _OWN_NAMES & family.settings.keys() else COMMON
    ids = {
        f"{role}_token_id": tokenizer.token_to_id(token)
        for role, token in (
            ("pad", family.special.pad),
            ("bos", family.special.cls),
            ("eos", family.special.sep),
            ("cls", family.special.cls),
            ("sep", family.special.sep),
        )
    }
    settings = common | {"vocab_size": tokenizer.get_vocab_size()} | ids | family.settings | changes
    for part in ("encoder", "decoder"):  # T5Gemma's encoder and decoder have their own configs
        if part in settings:
            settings[part] = settings[part] | {"vocab_size": settings["vocab_size"]}
    return family.config_class(**settings)


def model_class(settings: Any) -> Any:
    """Return the transformers class for a config, including SigLIP's text model, which `AutoModel` lacks."""
    if isinstance(settings, transformers.SiglipTextConfig):
        return transformers.SiglipTextModel
    return MODEL_MAPPING[type(settings)]


def build(name: str, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """Save a tiny model and its tokenizer into a folder, and return the model."""
    settings = config(name, **changes)
    torch.manual_seed(seed)
    model = model_class(settings)._from_config(settings)
    randomize(model, seed)
    model.save_pretrained(folder)
    save_tokenizer(name, folder)
    return model


def save_tokenizer(name: str, folder: Path) -> None:
    """Save the family's tokenizer into a folder."""
    family = family_of(name)
    tokenizer = family.tokenizer(family.special)
    names = ["input_ids", "attention_mask"]
    if family.special.second_segment == 1:
        names.insert(1, "token_type_ids")
    fast(tokenizer, family.special, model_input_names=names).save_pretrained(folder)


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Draw random weights that give sharp attention, and biases and norms that differ from their defaults."""
    generator = torch.Generator().manual_seed(seed)
    # MobileBERT's NoNorm does not bound hidden states, which would become too large for float32 precision.
    gain = 1.0 if isinstance(getattr(model, "base_model", model), transformers.MobileBertModel) else 1.5
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * gain * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(noise * 0.1)
        for module in model.modules():
            if isinstance(module, RoFormerSinusoidalPositionalEmbedding):
                module.weight.copy_(module.create_weight())
