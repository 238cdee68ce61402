"""Export of a BERT encoder to ONNX, with queries, keys and values of every layer as outputs.

The graph computes in float32. Weights are stored as float16 and converted to float32 inside the graph, so the
only difference from the original checkpoint is the rounding of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import StringStringEntryProto, TensorProto, helper

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint

OPSET: Final = 20
"""Version of the ONNX operators; 20 is the first with Gelu."""

WEIGHTS_FILE: Final = "weights.bin"
"""Name under which the graph refers to its weights."""

OUTPUTS: Final = ("hidden", "queries", "keys", "values")


class OnnxModel(NamedTuple):
    """A model in ONNX format.

    Attributes:
        graph: the serialized model, without weights.
        weights: the weights, float16, in the order and at the offsets that the graph specifies.
    """

    graph: bytes
    weights: bytes


class _Graph:
    """The nodes and weights of a graph; each method adds a node and returns the name of its output."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        self._weights = weights
        self._stored: list[bytes] = []
        self._offset = 0
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    @property
    def stored(self) -> bytes:
        return b"".join(self._stored)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], **attributes))
        return output

    def constant(self, value: NDArray[np.generic]) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(onnx.numpy_helper.from_array(value, name))
        return name

    def store(self, name: str, transpose: bool = False) -> str:
        """Add a weight as float16 to the weights file; the graph contains only its offset and length."""
        array = self._weights[name].T if transpose else self._weights[name]
        content = np.ascontiguousarray(array, dtype="<f2").tobytes()
        place = {"location": WEIGHTS_FILE, "offset": self._offset, "length": len(content)}
        self.initializers.append(
            TensorProto(
                name=name,
                data_type=TensorProto.FLOAT16,
                dims=array.shape,
                data_location=TensorProto.EXTERNAL,
                external_data=[StringStringEntryProto(key=key, value=str(place[key])) for key in place],
            )
        )
        self._stored.append(content)
        self._offset += len(content)
        return name

    def weight(self, name: str, transpose: bool = False) -> str:
        """Add a weight that is stored as float16 and converted to float32."""
        return self.add("Cast", self.store(name, transpose), to=TensorProto.FLOAT)

    def linear(self, vectors: str, name: str) -> str:
        product = self.add("MatMul", vectors, self.weight(f"{name}.weight", transpose=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def layer_norm(self, vectors: str, name: str, epsilon: float) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", vectors, scale, bias, axis=-1, epsilon=epsilon)


def export(checkpoint: Checkpoint) -> OnnxModel:
    """Convert a BERT encoder to ONNX, for one text of any length up to the model's limit.

    The inputs are `ids` and `segments`, int64 [token]. The outputs are float32: `hidden`, the output of the
    embeddings and of each layer, [layer + 1, token, hidden]; `queries`, `keys` and `values`, [layer, head,
    token, size].

    Raises:
        UnavailableError: the checkpoint is not a BERT encoder with absolute positions and GELU.
    """
    config: Any = checkpoint.model.config
    if config.model_type != "bert" or config.hidden_act != "gelu" or config.is_decoder:
        raise UnavailableError(
            f"Only BERT encoders with GELU can be exported to ONNX, not {checkpoint.description.name}."
        )
    state = checkpoint.model.state_dict()
    weights = {
        name: array.to(torch.float32).numpy() for name, array in state.items() if array.is_floating_point()
    }
    graph = _Graph(weights)
    hidden = _embeddings(graph, config.layer_norm_eps)
    states: list[str] = [hidden]
    parts: dict[str, list[str]] = {name: [] for name in OUTPUTS[1:]}
    for layer in range(config.num_hidden_layers):
        hidden = _layer(graph, hidden, f"encoder.layer.{layer}", config, parts)
        states.append(hidden)
    axis = graph.constant(np.array([0], np.int64))
    for name, members in {"hidden": states, **parts}.items():
        stacked = [graph.add("Unsqueeze", member, axis) for member in members]
        graph.add("Concat", *stacked, output=name, axis=0)
    return OnnxModel(_serialize(graph, checkpoint), graph.stored)


def _embeddings(graph: _Graph, epsilon: float) -> str:
    # Gather before Cast, so that only the embeddings of the text are converted to float32.
    rows = graph.add("Gather", graph.store("embeddings.word_embeddings.weight"), "ids")
    words = graph.add("Cast", rows, to=TensorProto.FLOAT)
    segments = graph.add("Gather", graph.weight("embeddings.token_type_embeddings.weight"), "segments")
    zero = graph.constant(np.array([0], np.int64))
    count = graph.add("Shape", "ids")
    positions = graph.add("Slice", graph.weight("embeddings.position_embeddings.weight"), zero, count, zero)
    total = graph.add("Add", graph.add("Add", words, segments), positions)
    return graph.layer_norm(total, "embeddings.LayerNorm", epsilon)


def _layer(graph: _Graph, hidden: str, name: str, config: Any, parts: dict[str, list[str]]) -> str:
    heads, epsilon = config.num_attention_heads, config.layer_norm_eps
    size = config.hidden_size // heads
    split, join = (
        graph.constant(np.array(shape, np.int64)) for shape in ([-1, heads, size], [-1, config.hidden_size])
    )
    for kind in ("query", "key", "value"):
        projected = graph.linear(hidden, f"{name}.attention.self.{kind}")
        by_head = graph.add("Transpose", graph.add("Reshape", projected, split), perm=[1, 0, 2])
        parts["queries" if kind == "query" else f"{kind}s"].append(by_head)
    queries, keys, values = (parts[name][-1] for name in OUTPUTS[1:])
    scores = graph.add("MatMul", queries, graph.add("Transpose", keys, perm=[0, 2, 1]))
    scaled = graph.add("Mul", scores, graph.constant(np.array(1 / math.sqrt(size), np.float32)))
    mixed = graph.add("MatMul", graph.add("Softmax", scaled, axis=-1), values)
    merged = graph.add("Reshape", graph.add("Transpose", mixed, perm=[1, 0, 2]), join)
    attended = graph.linear(merged, f"{name}.attention.output.dense")
    hidden = graph.layer_norm(
        graph.add("Add", attended, hidden), f"{name}.attention.output.LayerNorm", epsilon
    )
    inner = graph.add("Gelu", graph.linear(hidden, f"{name}.intermediate.dense"))
    outer = graph.linear(inner, f"{name}.output.dense")
    return graph.layer_norm(graph.add("Add", outer, hidden), f"{name}.output.LayerNorm", epsilon)


def _serialize(graph: _Graph, checkpoint: Checkpoint) -> bytes:
    config: Any = checkpoint.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    by_head = [layers, heads, "token", config.hidden_size // heads]
    shapes = {"hidden": [layers + 1, "token", config.hidden_size], **dict.fromkeys(OUTPUTS[1:], by_head)}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["token"]) for name in ("ids", "segments")
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in OUTPUTS]
    described = helper.make_graph(
        graph.nodes, checkpoint.description.name, inputs, outputs, initializer=graph.initializers
    )
    # IR version 9 is the first for operator set 20.
    model = helper.make_model(
        described, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9, producer_name="bert-probe"
    )
    return bytes(model.SerializeToString(deterministic=True))
