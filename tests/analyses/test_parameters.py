"""Test parameters: published counts, totals for every architecture, and the group of each tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModel, BertConfig

from bert_probe import Parameters
from bert_probe.analyses.weights.parameters import Inventory, list_parameters, parameters_of_config
from bert_probe.errors import ArchitectureError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import families, model_types

NAMES = sorted(families.FAMILIES)


@cache
def of(name: str, **changes: Any) -> Inventory:
    return parameters_of_config(families.config(name, **changes))


@pytest.fixture(scope="module")
def bert_base() -> Inventory:
    return parameters_of_config(BertConfig())


def test_bert_base_equals_published_figures(bert_base: Inventory) -> None:
    assert len(bert_base.rows) == 199
    assert bert_base.total == 109_482_240
    assert sum(row.count for row in bert_base.rows if len(row.shape) == 2) == 109_360_128
    assert bert_base.bytes == 4 * 109_482_240
    assert bert_base.rows[0].name == "embeddings.word_embeddings.weight"
    assert bert_base.rows[0].count == 23_440_896


def test_two_class_head_adds_two_parameter_tensors() -> None:
    result = parameters_of_config(BertConfig(), "BertForSequenceClassification")
    assert len(result.rows) == 201
    head = [row for row in result.rows if row.group == "head"]
    assert [(row.name, row.shape) for row in head] == [
        ("classifier.weight", (2, 768)),
        ("classifier.bias", (2,)),
    ]
    assert result.total == 109_482_240 + 2 * 768 + 2
    assert result.by_group()["layer 12"] == 7_087_872, "the prefix of the encoder does not hide a layer"


def test_bert_base_has_expected_groups(bert_base: Inventory) -> None:
    groups: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for row in bert_base.rows:
        groups.setdefault(row.group, []).append((row.name, row.shape))
    assert list(groups) == ["embeddings", *(f"layer {n}" for n in range(1, 13)), "pooler"]
    assert groups["embeddings"] == [
        ("embeddings.word_embeddings.weight", (30522, 768)),
        ("embeddings.position_embeddings.weight", (512, 768)),
        ("embeddings.token_type_embeddings.weight", (2, 768)),
        ("embeddings.LayerNorm.weight", (768,)),
        ("embeddings.LayerNorm.bias", (768,)),
    ]
    assert all(len(groups[f"layer {n}"]) == 16 for n in range(1, 13))
    assert groups["pooler"] == [("pooler.dense.weight", (768, 768)), ("pooler.dense.bias", (768,))]


def test_bert_base_layer_equals_hand_computation(bert_base: Inventory) -> None:
    first = Inventory(tuple(row for row in bert_base.rows if row.group == "layer 1"))
    assert first.subtotals(lambda row: row.part) == {
        "attention": 3 * (768 * 768 + 768),
        "attention output": 768 * 768 + 768 + 2 * 768,
        "feed-forward": 768 * 3072 + 3072 + 3072 * 768 + 768 + 2 * 768,
    }
    assert first.by_kind() == {"Linear": 7_087_872 - 4 * 768, "LayerNorm": 4 * 768}


@pytest.mark.parametrize("name", NAMES)
def test_total_of_each_family_equals_raw_model(name: str) -> None:
    config = families.config(name)
    result = parameters_of_config(config)
    raw = AutoModel.from_config(config)
    assert result.total == sum(parameter.numel() for parameter in raw.parameters())
    assert [(row.name, row.shape) for row in result.rows] == [
        (name, tuple(parameter.shape)) for name, parameter in raw.named_parameters(remove_duplicate=False)
    ]
    for sums in (result.by_group(), result.by_kind(), result.subtotals(lambda row: row.part)):
        assert sum(sums.values()) == result.total
    assert sum(row.share for row in result.rows) == pytest.approx(1)
    assert sum(row.bytes for row in result.rows) == result.bytes == 4 * result.total


@pytest.mark.parametrize("name", NAMES)
def test_each_family_has_layers_without_head(name: str) -> None:
    groups = of(name).by_group()
    layers = [group for group in groups if group.startswith("layer")]
    assert layers == (["layers 1 to 3, shared"] if name == "albert" else ["layer 1", "layer 2", "layer 3"])
    assert set(groups) - set(layers) <= {"embeddings", "pooler", "final norm", "encoder, all layers"}
    assert ("pooler" in groups) == any("pooler" in row.name for row in of(name).rows)


@pytest.mark.parametrize("name", NAMES)
def test_layer_contains_tensors_with_its_number(name: str) -> None:
    for row in of(name).rows:
        numbers = re.findall(r"\blayers?\.(\d+)\.", row.name)
        if numbers and name != "albert":
            assert row.group == f"layer {int(numbers[0]) + 1}", row.name
        elif not numbers:
            assert not row.group.startswith("layer "), row.name


# Names of the query, key and value tensors of each family, taken from the model sources.
PROJECTIONS = {
    "distilbert": r"\.[qkv]_lin\.",
    "modernbert": r"Wqkv|attn_norm",
    "nomic_bert": r"[qkv]_proj",
    "gte": r"[qkv]_proj",
    "jina_embeddings_v3": r"[qkv]_proj",
    "eurobert": r"[qkv]_proj|input_layernorm",
    "mpnet": r"attn\.[qkv]\.",
    "deberta-v2": r"(query|key|value)_proj",
    "xlm-roberta-xl": r"(query|key|value)\.|self_attn_layer_norm",
    "roberta-prelayernorm": r"(query|key|value)\.|attention\.LayerNorm",
}


@pytest.mark.parametrize("name", NAMES)
def test_attention_group_is_query_key_and_value(name: str) -> None:
    pattern = re.compile(PROJECTIONS.get(name, r"(query|key|value)\."))
    layer = [row for row in of(name).rows if row.group.startswith("layer")]
    expected = [row.name for row in layer if pattern.search(row.name)]
    assert expected, "the pattern matches something"
    assert [row.name for row in layer if row.part == "attention"] == expected


# Names of the output projection of attention and of the norm that follows it, if any, in each family.
OUTPUTS = {
    "distilbert": r"out_lin|sa_layer_norm",
    "albert": r"attention\.(dense|LayerNorm)",
    "mobilebert": r"attention\.output\.",
    "modernbert": r"attn\.Wo",
    "nomic_bert": r"o_proj|post_attention_layernorm",
    "gte": r"o_proj|post_attention_layernorm",
    "jina_embeddings_v3": r"o_proj|post_attention_layernorm",
    "eurobert": r"o_proj",
    "mpnet": r"attn\.o\.|attention\.LayerNorm",
    "xlm-roberta-xl": r"attention\.output\.",
    "roberta-prelayernorm": r"attention\.output\.",
}


@pytest.mark.parametrize("name", NAMES)
def test_other_tensors_of_layer_are_output_or_feed_forward(name: str) -> None:
    pattern = re.compile(OUTPUTS.get(name, r"attention\.output\."))
    rows = [row for row in of(name).rows if row.group.startswith("layer")]
    parts = {row.name: row.part for row in rows}
    assert [n for n, part in parts.items() if part == "attention output"] == [
        n for n in parts if pattern.search(n) and parts[n] != "bottleneck"
    ]
    kinds = {"attention", "attention output", "feed-forward"}
    assert set(parts.values()) == kinds | ({"bottleneck"} if name == "mobilebert" else set())


def test_mobilebert_bottlenecks_are_one_group() -> None:
    for row in of("mobilebert").rows:
        assert (row.part == "bottleneck") == ("bottleneck" in row.name), row.name


@pytest.mark.parametrize(
    ("family", "name", "group"),
    [
        ("electra", "embeddings_project.weight", "embeddings"),
        ("albert", "encoder.embedding_hidden_mapping_in.weight", "embeddings"),
        ("mobilebert", "embeddings.embedding_transformation.weight", "embeddings"),
        ("deberta-v2", "encoder.rel_embeddings.weight", "encoder, all layers"),
        ("deberta-v2", "encoder.LayerNorm.weight", "encoder, all layers"),
        ("mpnet", "encoder.relative_attention_bias.weight", "encoder, all layers"),
        ("modernbert", "final_norm.weight", "final norm"),
        ("eurobert", "norm.weight", "final norm"),
        ("eurobert", "embed_tokens.weight", "embeddings"),
        ("xlm-roberta-xl", "encoder.LayerNorm.weight", "final norm"),
        ("roberta-prelayernorm", "LayerNorm.weight", "final norm"),
        ("albert", "pooler.weight", "pooler"),
    ],
)
def test_tensors_outside_layers_are_grouped(family: str, name: str, group: str) -> None:
    assert {row.name: row.group for row in of(family).rows}[name] == group


# Group and part of parameters, taken from the model sources. Layers of T5, GPT-2 and MPT have other names.
PLACES = {
    "t5": {
        "shared.weight": ("embeddings", "embeddings"),
        "encoder.block.2.layer.0.SelfAttention.q.weight": ("layer 3", "attention"),
        "encoder.block.2.layer.0.SelfAttention.o.weight": ("layer 3", "attention output"),
        "encoder.block.2.layer.0.layer_norm.weight": ("layer 3", "attention"),
        "encoder.block.0.layer.1.layer_norm.weight": ("layer 1", "feed-forward"),
        "encoder.block.0.layer.1.DenseReluDense.wi.weight": ("layer 1", "feed-forward"),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": ("encoder, all layers",) * 2,
        "encoder.final_layer_norm.weight": ("final norm", "final norm"),
    },
    "umt5": {
        "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight": ("layer 2", "attention"),
    },
    "gpt2": {
        "wpe.weight": ("embeddings", "embeddings"),
        "h.1.ln_1.weight": ("layer 2", "attention"),
        "h.1.attn.c_attn.weight": ("layer 2", "attention"),
        "h.1.attn.c_proj.weight": ("layer 2", "attention output"),
        "h.2.ln_2.bias": ("layer 3", "feed-forward"),
        "h.2.mlp.c_proj.weight": ("layer 3", "feed-forward"),
        "ln_f.weight": ("final norm", "final norm"),
    },
    "openai-gpt": {
        "h.1.ln_1.weight": ("layer 2", "attention output"),
        "h.0.attn.c_attn.bias": ("layer 1", "attention"),
    },
    "mpt": {
        "blocks.1.norm_1.weight": ("layer 2", "attention"),
        "blocks.1.attn.out_proj.weight": ("layer 2", "attention output"),
    },
    "ctrl": {
        "w.weight": ("embeddings", "embeddings"),
        "h.0.multi_head_attention.Wk.weight": ("layer 1", "attention"),
        "h.0.multi_head_attention.dense.weight": ("layer 1", "attention output"),
        "layernorm.weight": ("final norm", "final norm"),
    },
    "bart": {
        "layers.1.self_attn_layer_norm.weight": ("layer 2", "attention output"),
        "layernorm_embedding.weight": ("embeddings", "embeddings"),
    },
    "bigbird_pegasus": {
        "layers.1.self_attn_layer_norm.weight": ("layer 2", "attention"),
        "layernorm_embedding.weight": ("final norm", "final norm"),
    },
    "mbart": {
        "layers.1.self_attn_layer_norm.weight": ("layer 2", "attention"),
        "layer_norm.weight": ("final norm", "final norm"),
    },
    "clip_text_model": {"encoder.layers.0.layer_norm1.weight": ("layer 1", "attention")},
    "deberta": {
        "encoder.layer.0.attention.self.pos_proj.weight": ("layer 1", "attention"),
        "encoder.layer.0.attention.self.pos_q_proj.weight": ("layer 1", "attention"),
        "encoder.layer.0.attention.output.dense.weight": ("layer 1", "attention output"),
    },
    "t5gemma": {"layers.0.pre_self_attn_layernorm.weight": ("layer 1", "attention")},
    "doge": {
        "layers.0.input_residual": ("layer 1", "attention output"),
        "layers.0.post_attention_residual": ("layer 1", "feed-forward"),
    },
    "gpt_oss": {"layers.0.self_attn.sinks": ("layer 1", "attention")},
    "mamba": {"layers.0.norm.weight": ("layer 1", "other")},
    "gemma2": {"layers.0.post_attention_layernorm.weight": ("layer 1", "attention output")},
    "qwen3": {
        "layers.0.self_attn.q_norm.weight": ("layer 1", "attention"),
        "layers.0.post_attention_layernorm.weight": ("layer 1", "feed-forward"),
    },
    "persimmon": {"layers.0.self_attn.q_layernorm.weight": ("layer 1", "attention")},
    "canine": {"initial_char_encoder.layer.0.attention.self.query.weight": ("other", "other")},
    "lfm2": {
        "layers.1.conv.in_proj.weight": ("layer 2", "other"),
        "embedding_norm.weight": ("final norm", "final norm"),
    },
    "fnet": {"encoder.layer.0.fourier.output.LayerNorm.weight": ("layer 1", "other")},
}


@pytest.mark.parametrize("name", PLACES)
def test_parameters_of_other_architectures_are_grouped(name: str) -> None:
    places = {row.name: (row.group, row.part) for row in of(name).rows}
    assert {parameter: places[parameter] for parameter in PLACES[name]} == PLACES[name]


@pytest.mark.gate(cases=6)
@pytest.mark.parametrize("name", sorted({*model_types.all_types()} - {"albert", "t5gemma"}))
def test_each_type_has_all_its_layers(name: str) -> None:
    layers = [group for group in of(name).by_group() if group.startswith("layer")]
    assert layers == [f"layer {number}" for number in range(1, len(layers) + 1)]
    assert len(layers) == families.config(name).num_hidden_layers
    sizes = [of(name).by_group()[layer] for layer in layers]
    assert min(sizes) > 0.4 * max(sizes), "no layer contains the parameters of another"


def test_decoder_of_encoder_decoder_is_a_group() -> None:
    result = parameters_of_config(families.config("bart"), "BartForSequenceClassification")
    assert {row.group for row in result.rows if ".decoder." in row.name} == {"decoder"}
    answers = parameters_of_config(families.config("t5"), "T5ForQuestionAnswering")
    assert {row.group for row in answers.rows if row.name.startswith("qa_outputs.")} == {"head"}
    assert result.by_group()["layer 1"] == of("bart").by_group()["layer 1"]


def test_norms_of_flaubert_may_precede_the_attention() -> None:
    places = {row.name: row.part for row in of("flaubert", pre_norm=True).rows}
    assert places["layer_norm1.0.weight"] == "attention"
    assert places["layer_norm2.0.weight"] == "feed-forward"


def test_deberta_convolution_belongs_to_first_layer() -> None:
    rows = [row for row in of("deberta-v2", conv_kernel_size=3).rows if row.name.startswith("encoder.conv.")]
    assert len(rows) == 4
    assert {(row.group, row.part) for row in rows} == {("layer 1", "convolution")}


def test_xlm_module_lists_are_read_as_layers() -> None:
    settings = {"vocab_size": 50, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 20}
    result = parameters_of_config(transformers.XLMConfig(**settings))
    places = {row.name: (row.group, row.part) for row in result.rows}
    assert places["attentions.1.q_lin.weight"] == ("layer 2", "attention")
    assert places["attentions.0.out_lin.bias"] == ("layer 1", "attention output")
    assert places["layer_norm1.1.weight"] == ("layer 2", "attention output")
    assert places["ffns.0.lin1.weight"] == places["layer_norm2.0.bias"] == ("layer 1", "feed-forward")
    assert places["layer_norm_emb.weight"] == ("embeddings", "embeddings")
    assert set(result.by_group()) == {"embeddings", "layer 1", "layer 2"}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (1, ["layers 1 to 3, shared"]),
        (2, ["layers 1 to 2, shared", "layer 3"]),
        (3, ["layer 1", "layer 2", "layer 3"]),
    ],
)
def test_albert_groups_name_their_layers(groups: int, expected: list[str]) -> None:
    result = of("albert", num_hidden_groups=groups)
    assert [group for group in result.by_group() if group.startswith("layer")] == expected


def test_tied_weights_are_counted_once_and_named(bert_base: Inventory) -> None:
    result = parameters_of_config(BertConfig(), "BertForMaskedLM")
    raw = transformers.BertForMaskedLM(families.config("bert"))
    tiny = list_parameters(raw)
    for parameters in (result, tiny):
        rows = {row.name: row for row in parameters.rows}
        decoder = rows["cls.predictions.decoder.weight"]
        assert (decoder.count, decoder.bytes, decoder.share) == (0, 0, 0)
        assert decoder.tied_to == "bert.embeddings.word_embeddings.weight"
        assert decoder.shape == rows["bert.embeddings.word_embeddings.weight"].shape
        assert rows["bert.embeddings.word_embeddings.weight"].tied_to is None
        assert decoder.group == "head"
    assert tiny.total == sum(parameter.numel() for parameter in raw.parameters())
    assert result.total == bert_base.total - bert_base.by_group()["pooler"] + 768 * 768 + 3 * 768 + 30522
    assert all(row.tied_to is None for row in bert_base.rows)


def test_config_is_sufficient_and_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    register = torch.nn.Module.register_parameter

    def watched(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        devices.append(None if param is None else param.device.type)
        register(self, name, param)

    monkeypatch.setattr(torch.nn.Module, "register_parameter", watched)
    for architecture in (None, "BertForSequenceClassification"):
        config = BertConfig()
        before = config.to_dict(), config._attn_implementation
        parameters_of_config(config, architecture)
        assert (config.to_dict(), config._attn_implementation) == before
    assert set(devices) <= {"meta", None}
    assert "meta" in devices


@pytest.mark.parametrize(
    "name", ["NoSuchModel", "BertTokenizer", "logging", "PreTrainedModel", "RobertaModel"]
)
def test_only_model_classes_for_config_are_built(name: str) -> None:
    with pytest.raises(ArchitectureError, match=name):
        parameters_of_config(BertConfig(), name)


@pytest.mark.prove
def test_config_without_encoder_raises_error() -> None:
    with pytest.raises(ArchitectureError, match="cannot build a model from this config"):
        parameters_of_config(transformers.PretrainedConfig())


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 2), (torch.bfloat16, 2), (torch.float64, 8)])
def test_bytes_follow_dtype(dtype: torch.dtype, size: int) -> None:
    result = list_parameters(AutoModel.from_config(families.config("bert")).to(dtype))
    assert {row.dtype for row in result.rows} == {str(dtype).removeprefix("torch.")}
    assert all(row.bytes == size * row.count for row in result.rows)


def test_shares_are_relative_to_total(bert_base: Inventory) -> None:
    assert bert_base.rows[0].share == 23_440_896 / 109_482_240


def test_module_type_is_class_of_owner() -> None:
    kinds = {row.name: row.kind for row in of("eurobert").rows}
    assert kinds["norm.weight"] == "EuroBertRMSNorm"
    assert kinds["layers.0.self_attn.q_proj.weight"] == "Linear"


def test_checkpoint_total_equals_its_description(
    minilm: Checkpoint, family: Callable[[str], Checkpoint]
) -> None:
    result = Parameters().of(minilm).inventory
    assert (result.total, len(result.rows)) == (22_713_216, 103)
    for checkpoint in (minilm, family("mobilebert"), family("mpnet")):
        assert Parameters().of(checkpoint).inventory.total == checkpoint.description.parameter_count


def test_parts_add_up_to_their_groups(bert_base: Inventory) -> None:
    sums: dict[str, int] = {}
    for (group, _), count in bert_base.by_part().items():
        sums[group] = sums.get(group, 0) + count
    assert sums == bert_base.by_group()
    assert list(bert_base.by_part())[:2] == [("embeddings", "embeddings"), ("layer 1", "attention")]


ALL = ["name", "group", "part", "kind", "shape", "count", "dtype", "bytes", "share", "tied_to"]


def test_table_of_checkpoint_has_provenance(minilm: Checkpoint) -> None:
    result = Parameters().of(minilm)
    frame = result.table()
    assert list(frame) == ALL
    description = frame.attrs["provenance"]
    assert description["question"] == {"analysis": "parameters", "columns": "all"}
    assert description["facts"] == {"total": 22_713_216}
    assert description["weights_sha256"].startswith("53aa51172d142c89")
    assert frame["count"].sum() == 22_713_216
    assert frame["shape"].iloc[0] == "30522×384"
    assert frame["bytes"].sum() == 4 * 22_713_216
    main = result.showing(columns="main").frame()
    assert list(main) == ["name", "group", "shape", "count", "dtype", "bytes"]
    assert main.equals(frame[list(main)])
    with pytest.raises(SelectionError, match="columns must be all or main, not 'some'"):
        Parameters("some")


def test_table_of_config_has_no_weights_digest() -> None:
    result = of("mpnet")
    frame = result.frame()
    assert frame.attrs == {}
    assert list(frame) == ALL
    assert [row.group for row in result.rows] == frame["group"].tolist()
