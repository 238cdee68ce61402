"""BertViz's two functions, with its arguments and our views: ``from bert_probe.bertviz import head_view``.

For attention of any model, offline, and not only up to some 150 tokens. `docs/bertviz.md` says, argument by
argument, what is the same, what is better and what is refused. BertViz: Vig 2019, "A Multiscale Visualization
of Attention in the Transformer Model".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.external_attention import from_attention, layers_of
from bert_probe.model.trace import Array, Trace, resolve
from bert_probe.notebook import views
from bert_probe.notebook.frame import Frame
from bert_probe.notebook.live import HeadView

if TYPE_CHECKING:
    from IPython.display import HTML

_MARKS = (("Ġ", " "), ("▁", " "), ("</w>", ""))
"""How tokenizers mark where a word begins or ends, and what BertViz writes for it."""


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
    """Lines from token to token, with the arguments of `bertviz.head_view`.

    Args:
        attention: of an encoder or a decoder, a tensor a layer, each [1, head, query, key].
        tokens: one for each query.
        sentence_b_start: position of the second text's first token, where there are two.
        prettify_tokens: whether marks of word pieces, such as Ġ, are taken out.
        layer: shown first, from 0; the first of those included if None.
        heads: shown first, from 0; all if None.
        encoder_attention, decoder_attention, cross_attention: of a model that has both, a tensor a layer,
            each [1, head, query, key]; one, two or all of them.
        encoder_tokens, decoder_tokens: of those.
        include_layers: from 0; all if None.
        html_action: "view" shows it as the output of a cell; "return" returns it, its ``data`` the HTML.

    Raises:
        ShapeError: arguments that do not belong together, or no attention; see also `from_attention`.
        SelectionError: a layer, head or action that is not there.
        TooLongError: see `notebook.head_view`.
    """
    given = _given(
        attention,
        tokens,
        sentence_b_start,
        (encoder_attention, decoder_attention, cross_attention),
        (encoder_tokens, decoder_tokens),
        prettify_tokens,
    )

    def frame(picture: _Picture) -> HeadView:
        layers = picture.included(include_layers)
        first = layers[0] if layer is None else resolve(layer, picture.layers, "layer")
        if first not in layers:
            raise SelectionError(f"Layer {first} is not among those of include_layers: {layers}.")
        trace = picture.trace(layers, numbered=True)
        shown = views.head_view(
            trace, layers.index(first), range(trace.heads) if heads is None else list(heads)
        )
        return (
            shown
            if layers == list(range(picture.layers))
            else shown.numbered([layer + 1 for layer in layers])
        )

    return _done([frame(picture) for picture in given], html_action)


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
    """All heads of all layers at once, with the arguments of `bertviz.model_view`.

    Args:
        display_mode: "light" or "dark".
        include_heads: from 0; all if None.

    The others, and what is raised: see `head_view`.
    """
    if display_mode not in ("light", "dark"):
        raise SelectionError(f"There is no display_mode {display_mode!r}; use light or dark.")
    given = _given(
        attention,
        tokens,
        sentence_b_start,
        (encoder_attention, decoder_attention, cross_attention),
        (encoder_tokens, decoder_tokens),
        prettify_tokens,
    )

    def frame(picture: _Picture) -> Frame:
        shown = views.model_view(picture.trace(picture.included(include_layers), include_heads))
        return replace(shown, page=replace(shown.page, theme=display_mode))

    return _done([frame(picture) for picture in given], html_action)


@dataclass(frozen=True)
class _Picture:
    """Attention that is drawn in one picture.

    Attributes:
        name: what it is of, beside its texts.
        weights: a [head, query, key] a layer.
        caveat: what is to be said of its rows; None for what `from_attention` says.
    """

    name: str
    weights: Sequence[Array]
    tokens: Sequence[str]
    sentence_b_start: int | None
    caveat: str | None = None

    @property
    def layers(self) -> int:
        return len(self.weights)

    def included(self, layers: Sequence[int] | None) -> list[int]:
        """Layers from 0; all for None, and for none, as in BertViz."""
        return [resolve(layer, self.layers, "layer") for layer in layers or range(self.layers)]

    def trace(
        self, layers: Sequence[int], heads: Sequence[int] | None = None, numbered: bool = False
    ) -> Trace:
        """These layers and heads as a trace; where they are not all, its name says which they are, unless
        the picture calls layers by their numbers."""
        count = len(self.weights[0])
        chosen = [resolve(head, count, "head") for head in heads or range(count)]
        said = [
            self.name,
            *([] if numbered else _part("layer", layers, self.layers)),
            *_part("head", chosen, count),
        ]
        made = from_attention(
            [self.weights[layer][chosen] for layer in layers],
            self.tokens,
            sentence_b_start=self.sentence_b_start,
            name=", ".join(filter(None, said)) or "attention",
        )
        return made if self.caveat is None else replace(made, caveat=self.caveat)


def _part(what: str, chosen: Sequence[int], count: int) -> Iterator[str]:
    """Which of them these are, as people count, where they are not all in their order."""
    if list(chosen) != list(range(count)):
        yield f"{what}s {', '.join(str(one + 1) for one in chosen)} of {count} as 1 to {len(chosen)}"


def _given(
    attention: Any,
    tokens: Sequence[str] | None,
    sentence_b_start: int | None,
    of_both: tuple[Any, Any, Any],
    their_tokens: tuple[Sequence[str] | None, Sequence[str] | None],
    pretty: bool,
) -> list[_Picture]:
    shown: Callable[[Sequence[str]], list[str]] = _prettified if pretty else list
    both = any(one is not None for one in (*of_both, *their_tokens))
    if attention is None:
        if not any(one is not None for one in of_both):
            raise ShapeError(
                "There is no attention. Give attention, or one of encoder_attention, decoder_attention and "
                "cross_attention."
            )
        return _of_both(*of_both, *their_tokens, shown)
    if both:
        raise ShapeError(
            "attention is of a model with an encoder or a decoder alone. Give it without encoder_attention, "
            "decoder_attention, cross_attention and their tokens."
        )
    if tokens is None:
        raise ShapeError("There are no tokens. Give one for each query.")
    return [_Picture("", layers_of(attention), shown(tokens), sentence_b_start)]


def _of_both(
    encoder: Any,
    decoder: Any,
    cross: Any,
    encoder_tokens: Sequence[str] | None,
    decoder_tokens: Sequence[str] | None,
    shown: Callable[[Sequence[str]], list[str]],
) -> list[_Picture]:
    """One picture, where layers and heads are the same in number, else one each."""
    needed = {
        "encoder_tokens": (encoder_tokens, encoder is not None or cross is not None),
        "decoder_tokens": (decoder_tokens, decoder is not None or cross is not None),
    }
    for name, (given, wanted) in needed.items():
        if wanted and given is None:
            raise ShapeError(f"There are no {name}. Give one for each of the tokens.")
    ours, theirs = shown(decoder_tokens or []), shown(encoder_tokens or [])
    kinds = {
        name: layers_of(one)
        for name, one in (("encoder", encoder), ("decoder", decoder), ("cross", cross))
        if one is not None
    }
    if "cross" not in kinds:
        alone = {"encoder": theirs, "decoder": ours}
        return [_Picture(name, layers, alone[name], None) for name, layers in kinds.items()]
    if len({(len(layers), len(layers[0])) for layers in kinds.values()}) == 1:
        return [_blocks(kinds, ours, theirs)]
    return [_blocks({name: layers}, ours, theirs) for name, layers in kinds.items()]


def _blocks(kinds: dict[str, list[Array]], ours: list[str], theirs: list[str]) -> _Picture:
    """The decoder's tokens as A, then the encoder's as B: each kind of attention is a block of the whole."""
    a, b = slice(0, len(ours)), slice(len(ours), len(ours) + len(theirs))
    places = {"decoder": (a, a), "cross": (a, b), "encoder": (b, b)}
    first = next(iter(kinds.values()))
    dtype = np.result_type(*(layers[0] for layers in kinds.values()))
    whole = [np.zeros((len(first[0]), b.stop, b.stop), dtype) for _ in first]
    for name, layers in kinds.items():
        queries, keys = places[name]
        for number, layer in enumerate(layers):
            expected = (len(first[0]), queries.stop - queries.start, keys.stop - keys.start)
            if layer.shape != expected:
                raise ShapeError(
                    f"Layer {number + 1} of {name}_attention has shape {layer.shape}; its tokens make "
                    f"{expected[1]} queries and {expected[2]} keys."
                )
            whole[number][:, queries, keys] = layer
    said = ", ".join(_BLOCKS[name] for name in places if name in kinds)
    return _Picture(
        " and ".join(kinds),
        whole,
        [*ours, *theirs],
        len(ours),
        f"A is the decoder's tokens and B the encoder's. Attention: {said}.",
    )


_BLOCKS = {
    "decoder": "A→A the decoder's to its own tokens",
    "cross": "A→B the decoder's to the encoder's",
    "encoder": "B→B the encoder's to its own",
}


def _prettified(tokens: Sequence[str]) -> list[str]:
    made = []
    for token in tokens:
        for mark, written in _MARKS:
            token = token.replace(mark, written)
        made.append(token)
    return made


def _done(frames: Sequence[Frame | HeadView], action: str) -> HTML | None:
    from IPython.display import HTML, display

    if action not in ("view", "return"):
        raise SelectionError(f"There is no html_action {action!r}; use view or return.")
    # In an element, as IPython warns of HTML that is one frame.
    written = "\n".join(frame._repr_html_() for frame in frames)
    made = HTML(f"<div>{written}</div>")  # type: ignore[no-untyped-call]
    if action == "return":
        return made
    display(made)  # type: ignore[no-untyped-call]
    return None
