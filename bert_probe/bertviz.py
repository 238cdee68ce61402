"""Replacements for BertViz's functions with the same arguments: ``from bert_probe.bertviz import head_view``.

The functions accept attention from any model, work offline, and are not limited to about 150 tokens.
`docs/bertviz.md` compares all arguments. BertViz: Vig 2019, "A Multiscale Visualization of Attention in the
Transformer Model".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bert_probe import notebook
from bert_probe.core import extras
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.external_attention import from_attention, layers_of
from bert_probe.model.trace import Array, Trace, resolve_index
from bert_probe.notebook import Frame, HeadView

if TYPE_CHECKING:
    from IPython.display import HTML

_MARKS = (("Ġ", " "), ("▁", " "), ("</w>", ""))
"""Pairs of a tokenizer's word boundary marker and the text with which BertViz replaces it."""


def head_view(
    attention: Any = None,
    tokens: Sequence[str] | None = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    encoder_attention: Any = None,
    decoder_attention: Any = None,
    cross_attention: Any = None,
    encoder_tokens: Sequence[str] | None = None,
    decoder_tokens: Sequence[str] | None = None,
    include_layers: Sequence[int] | None = None,
    html_action: Literal["view", "return"] = "view",
) -> HTML | None:
    """Show attention as lines between tokens, with the arguments of `bertviz.head_view`.

    Args:
        attention: attention weights of an encoder or decoder, one tensor of shape [1, head, query, key] per
            layer.
        tokens: the token at each query position.
        sentence_b_start: position of the first token of the second text; None for a single text.
        prettify_tokens: whether to remove tokenizer markers such as Ġ.
        layer: initial layer, from 0; by default the first included layer.
        heads: initial heads, from 0; by default all.
        encoder_attention, decoder_attention, cross_attention: attention weights of an encoder-decoder model,
            one tensor of shape [1, head, query, key] per layer; at least one of the three is required.
        encoder_tokens, decoder_tokens: tokens of the encoder and of the decoder.
        include_layers: layers to include, from 0; by default all.
        html_action: "view" displays the result in the notebook; "return" returns it, with the HTML in
            ``data``.

    Raises:
        ShapeError: the arguments are inconsistent, or contain no attention; see also `from_attention`.
        SelectionError: a layer, head or action does not exist.
        TooLongError: the page would be too large; see `notebook.head_view`.
    """
    pictures = _pictures(
        attention,
        tokens,
        sentence_b_start,
        (encoder_attention, decoder_attention, cross_attention),
        (encoder_tokens, decoder_tokens),
        prettify_tokens,
    )

    def frame(picture: _ConvertedAttention) -> HeadView:
        layers = picture.included(include_layers)
        initial_layer = layers[0] if layer is None else resolve_index(layer, picture.layers, "layer")
        if initial_layer not in layers:
            raise SelectionError(f"layer must be one of include_layers ({layers}), not {initial_layer}.")
        trace = picture.trace(layers, numbered=True)
        view = notebook.head_view(
            trace, layers.index(initial_layer), range(trace.heads) if heads is None else list(heads)
        )
        return (
            view if layers == list(range(picture.layers)) else view.numbered([layer + 1 for layer in layers])
        )

    return _display([frame(picture) for picture in pictures], html_action)


def model_view(
    attention: Any = None,
    tokens: Sequence[str] | None = None,
    sentence_b_start: int | None = None,
    prettify_tokens: bool = True,
    display_mode: Literal["light", "dark"] = "dark",
    encoder_attention: Any = None,
    decoder_attention: Any = None,
    cross_attention: Any = None,
    encoder_tokens: Sequence[str] | None = None,
    decoder_tokens: Sequence[str] | None = None,
    include_layers: Sequence[int] | None = None,
    include_heads: Sequence[int] | None = None,
    html_action: Literal["view", "return"] = "view",
) -> HTML | None:
    """Show all attention heads in all layers, with the arguments of `bertviz.model_view`.

    Args:
        display_mode: "light" or "dark".
        include_heads: heads to include, from 0; by default all.

    For the other arguments and the errors, see `head_view`.
    """
    if display_mode not in ("light", "dark"):
        raise SelectionError(f"Unknown display_mode {display_mode!r}. Use light or dark.")
    pictures = _pictures(
        attention,
        tokens,
        sentence_b_start,
        (encoder_attention, decoder_attention, cross_attention),
        (encoder_tokens, decoder_tokens),
        prettify_tokens,
    )

    def frame(picture: _ConvertedAttention) -> Frame:
        view = notebook.model_view(picture.trace(picture.included(include_layers), include_heads))
        return replace(view, page=replace(view.page, theme=display_mode))

    return _display([frame(picture) for picture in pictures], html_action)


def _all_if_empty(indices: Sequence[int] | None, count: int) -> Sequence[int]:
    """Return the indices (a sequence or array), or ``range(count)`` if they are None or empty."""
    return [*(() if indices is None else indices)] or range(count)


@dataclass(frozen=True)
class _ConvertedAttention:
    """The converted attention for one figure.

    Attributes:
        name: names of the kinds of attention, such as "encoder and cross"; "" for a model with only one kind.
        weights: attention weights, one array of shape [head, query, key] per layer.
        tokens: one token per query.
        sentence_b_start: position of the first token of the second text; None for a single text.
        legend: sentences below the figure about the kinds of attention; "" for a single kind.
    """

    name: str
    weights: Sequence[Array]
    tokens: Sequence[str]
    sentence_b_start: int | None
    legend: str = ""

    @property
    def layers(self) -> int:
        return len(self.weights)

    def included(self, layers: Sequence[int] | None) -> list[int]:
        """Return the indices of the included layers. As in BertViz, None and an empty list select all."""
        return [resolve_index(layer, self.layers, "layer") for layer in _all_if_empty(layers, self.layers)]

    def trace(
        self, layers: Sequence[int], heads: Sequence[int] | None = None, numbered: bool = False
    ) -> Trace:
        """Return a trace of the selected layers and heads.

        The trace's name lists the selected layers and heads unless all are selected. If `numbered`, layers
        are not listed, because the figure shows their numbers.
        """
        count = len(self.weights[0])
        head_indices = [resolve_index(head, count, "head") for head in _all_if_empty(heads, count)]
        name_parts = [
            self.name,
            *([] if numbered else _describe_subset("layer", layers, self.layers)),
            *_describe_subset("head", head_indices, count),
        ]
        trace = from_attention(
            [self.weights[layer][head_indices] for layer in layers],
            self.tokens,
            sentence_b_start=self.sentence_b_start,
            name=", ".join(filter(None, name_parts)) or "attention",
        )
        return replace(trace, caveat=f"{self.legend} {trace.caveat}".strip())


def _describe_subset(noun: str, indices: Sequence[int], count: int) -> Iterator[str]:
    """Yield a description of the selected layers or heads (from 1); yield nothing if all are selected."""
    if list(indices) != list(range(count)):
        yield (
            f"{noun}s {', '.join(str(index + 1) for index in indices)} of {count}, numbered 1 to "
            f"{len(indices)}"
        )


def _pictures(
    attention: Any,
    tokens: Sequence[str] | None,
    sentence_b_start: int | None,
    encoder_decoder_attention: tuple[Any, Any, Any],
    encoder_decoder_tokens: tuple[Sequence[str] | None, Sequence[str] | None],
    prettify: bool,
) -> list[_ConvertedAttention]:
    convert: Callable[[Sequence[str]], list[str]] = _prettify if prettify else list
    has_encoder_decoder = any(
        argument is not None for argument in (*encoder_decoder_attention, *encoder_decoder_tokens)
    )
    if attention is None:
        if not any(argument is not None for argument in encoder_decoder_attention):
            raise ShapeError(
                "There is no attention. Pass attention, or one of encoder_attention, decoder_attention and "
                "cross_attention."
            )
        return _encoder_decoder_pictures(*encoder_decoder_attention, *encoder_decoder_tokens, convert)
    if has_encoder_decoder:
        raise ShapeError(
            "attention cannot be combined with the arguments of encoder-decoder models. Omit attention, or "
            "omit encoder_attention, decoder_attention, cross_attention and their tokens."
        )
    if tokens is None:
        raise ShapeError("There are no tokens. Pass one token for each query.")
    return [_ConvertedAttention("", layers_of(attention), convert(tokens), sentence_b_start)]


def _encoder_decoder_pictures(
    encoder: Any,
    decoder: Any,
    cross: Any,
    encoder_tokens: Sequence[str] | None,
    decoder_tokens: Sequence[str] | None,
    convert: Callable[[Sequence[str]], list[str]],
) -> list[_ConvertedAttention]:
    """Return the figures for the attention of an encoder-decoder model.

    If cross-attention is given and all kinds of attention have the same numbers of layers and heads, one
    figure shows all kinds. Otherwise, each kind has its own figure.
    """
    needed = {
        "encoder_tokens": (encoder_tokens, encoder is not None or cross is not None),
        "decoder_tokens": (decoder_tokens, decoder is not None or cross is not None),
    }
    for name, (tokens, is_needed) in needed.items():
        if is_needed and tokens is None:
            raise ShapeError(f"{name} is missing. Pass one token for each query.")
    decoder_names, encoder_names = convert(decoder_tokens or []), convert(encoder_tokens or [])
    kinds = {
        name: layers_of(attention)
        for name, attention in (("encoder", encoder), ("decoder", decoder), ("cross", cross))
        if attention is not None
    }
    if "cross" not in kinds:
        tokens_of = {"encoder": encoder_names, "decoder": decoder_names}
        return [_ConvertedAttention(name, layers, tokens_of[name], None) for name, layers in kinds.items()]
    if len({(len(layers), len(layers[0])) for layers in kinds.values()}) == 1:
        return [_blocks(kinds, decoder_names, encoder_names)]
    return [_blocks({name: layers}, decoder_names, encoder_names) for name, layers in kinds.items()]


def _blocks(
    kinds: dict[str, list[Array]], decoder_names: list[str], encoder_names: list[str]
) -> _ConvertedAttention:
    """Combine all kinds of attention into one matrix over the decoder tokens (A) and encoder tokens (B)."""
    a, b = slice(0, len(decoder_names)), slice(len(decoder_names), len(decoder_names) + len(encoder_names))
    block_slices = {"decoder": (a, a), "cross": (a, b), "encoder": (b, b)}
    first_layers = next(iter(kinds.values()))
    dtype = np.result_type(*(layers[0] for layers in kinds.values()))
    combined = [np.zeros((len(first_layers[0]), b.stop, b.stop), dtype) for _ in first_layers]
    for name, layers in kinds.items():
        queries, keys = block_slices[name]
        for number, layer in enumerate(layers):
            expected = (len(first_layers[0]), queries.stop - queries.start, keys.stop - keys.start)
            if layer.shape != expected:
                raise ShapeError(
                    f"Layer {number + 1} of {name}_attention has shape {layer.shape}, but must have shape "
                    f"{expected}: {expected[0]} heads, as in layer 1, {expected[1]} query tokens and "
                    f"{expected[2]} key tokens. Pass the tokens of this attention."
                )
            combined[number][:, queries, keys] = layer
    legend = (
        "Sentence A consists of the decoder's tokens, sentence B of the encoder's tokens. Attention: "
        f"{', '.join(_BLOCKS[name] for name in block_slices if name in kinds)}."
    )
    if {"decoder", "cross"} <= kinds.keys():
        legend += (
            " Measures such as the entropy are computed from both kinds of attention of a decoder token."
        )
    return _ConvertedAttention(
        " and ".join(kinds),
        combined,
        [*decoder_names, *encoder_names],
        len(decoder_names),
        legend,
    )


_BLOCKS = {
    "decoder": "A→A decoder self-attention",
    "cross": "A→B cross-attention",
    "encoder": "B→B encoder self-attention",
}


def _prettify(tokens: Sequence[str]) -> list[str]:
    prettified = []
    for token in tokens:
        for mark, replacement in _MARKS:
            token = token.replace(mark, replacement)
        prettified.append(token)
    return prettified


def _display(frames: Sequence[Frame | HeadView], action: str) -> HTML | None:
    with extras.explain_missing():
        from IPython.display import HTML, display

    if action not in ("view", "return"):
        raise SelectionError(f"Unknown html_action {action!r}. Use view or return.")
    # Wrap the frames in a div, because IPython warns about HTML that consists of a single iframe.
    frames_html = "\n".join(frame._repr_html_() for frame in frames)
    html = HTML(f"<div>{frames_html}</div>")  # type: ignore[no-untyped-call]
    if action == "return":
        return html
    display(html)  # type: ignore[no-untyped-call]
    return None
