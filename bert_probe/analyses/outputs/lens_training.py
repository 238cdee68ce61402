"""How a tuned lens is trained: what a model has at masks, and a map a layer towards its answer there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from bert_probe.errors import EmptyTextError, TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import as_array, batch, batches
from bert_probe.model.layers import ForwardPass
from bert_probe.model.outputs import OutputHead
from bert_probe.model.trace import Array
from bert_probe.text.validation import ValidationErrors

SHARE = 0.15
"""Of a line's tokens that are masked at a time, as in the training of BERT (Devlin et al. 2019)."""
READINGS = 4
"""Times that a line is read, with other tokens masked each time: so few lines give more to learn from."""
BATCH = 64
"""Masked words of a step."""
RATE = 1.0
"""Of Adam (Kingma and Ba 2015), over the numbers of a vector, as so many add up to one; falling to 0 along a
straight line."""
GROUP_TOKENS = 2048
"""Padded tokens that are read at once; every layer of them is held."""
MOST_BYTES = 2_000_000_000
"""Of vectors that are kept to learn from."""

Told = Callable[[], None]
"""Called when another part of the work is done."""


@dataclass(frozen=True, eq=False)
class MaskTargets:
    """What a model has at masks.

    Attributes:
        states: hidden states, [layer + 1, place, hidden].
        inputs: what the model was given there, name → [place].
        lines: which line each place is of, [place].
    """

    states: Array
    inputs: Mapping[str, Array]
    lines: Array

    def of(self, chosen: Array) -> MaskTargets:
        """Those where this is so, bool [place]."""
        inputs = {name: values[chosen] for name, values in self.inputs.items()}
        return MaskTargets(self.states[:, chosen], inputs, self.lines[chosen])

    def __len__(self) -> int:
        return len(self.lines)


@dataclass(frozen=True, eq=False)
class MaskedLines:
    """Lines with some of their tokens masked, in groups that are read at once.

    Attributes:
        texts: what the model is given, each line `READINGS` times.
        lines: which line each is.
        places: where its masks are.
        groups: indices of the texts.
    """

    texts: Sequence[ModelInputs]
    lines: Sequence[int]
    places: Sequence[Array]
    groups: Sequence[Sequence[int]]


def readings(checkpoint: Checkpoint, lines: Sequence[ModelInputs], seed: int) -> MaskedLines:
    """Mask `SHARE` of the tokens of each line, at least one; special and unknown ones stay.

    Raises:
        EmptyTextError: no line has a word that can be masked.
        TextError: more of them than can be kept.
    """
    random, mask = np.random.default_rng(seed), checkpoint.tokenizer.mask_token_id
    specials = checkpoint.tokenizer.all_special_ids
    texts = [masked(line, specials, mask, random) for _ in range(READINGS) for line in lines]
    places = [np.flatnonzero(text.inputs["input_ids"] == mask) for text in texts]
    about, count = checkpoint.description, sum(map(len, places))
    if not count:
        raise EmptyTextError("No line has a word that can be masked. Give words that the model knows.")
    size = (about.layers + 1) * count * about.hidden_size * (8 if about.dtype == "float64" else 4)
    if size > MOST_BYTES:
        raise TextError(
            f"{len(lines):,} lines have {count:,} masked words, whose vectors take {size / 1e9:.1f} GB; "
            f"{MOST_BYTES / 1e9:.0f} GB are kept. Give fewer lines: some thousands are enough."
        )
    groups = batches([len(text) for text in texts], GROUP_TOKENS, checkpoint.pads)
    return MaskedLines(texts, [*range(len(lines))] * READINGS, places, groups)


def inputs_of(checkpoint: Checkpoint, lines: Sequence[tuple[int, str]], truncate: bool) -> list[ModelInputs]:
    """What the model is given for each line, which comes with its number.

    Raises:
        InvalidFileError: some that cannot be read, all of them named.
    """
    found, faults = [], ValidationErrors("The list")
    for number, line in lines:
        try:
            found.append(checkpoint.encoder.inputs(line, truncate=truncate))
        except TextError as error:
            faults.add(number, str(error))
    faults.check()
    return found


def masked(line: ModelInputs, specials: Sequence[int], mask: int, random: np.random.Generator) -> ModelInputs:
    """A text with `SHARE` of its tokens masked, one at least if there is one that is not special."""
    ids = line.inputs["input_ids"].copy()
    free = np.flatnonzero(~np.isin(ids, specials))
    count = max(1, round(SHARE * len(free))) if len(free) else 0
    ids[random.choice(free, count, replace=False)] = mask
    return ModelInputs({**line.inputs, "input_ids": ids}, line.dropped)


def read(checkpoint: Checkpoint, given: MaskedLines, told: Told) -> MaskTargets:
    """Run the model on all of it, and keep what it has at the masks.

    Raises:
        OutOfMemoryError: the machine is too small.
        UnavailableError: numbers that are not finite; a model in memory that changes meanwhile.
    """
    starts = np.cumsum([0, *map(len, given.places)])
    about = checkpoint.description
    with memory_errors("The vectors of these lines need more memory than is free. Give fewer lines."):
        kind = np.float64 if about.dtype == "float64" else np.float32
        states = np.empty((about.layers + 1, starts[-1], about.hidden_size), kind)
        for group in given.groups:
            with torch.inference_mode(), checkpoint.running() as model:
                inputs = batch(checkpoint, [given.texts[index] for index in group])
                layers = model(**inputs, output_hidden_states=True).hidden_states
                for row, index in enumerate(group):
                    for layer, vectors in enumerate(layers):
                        own = slice(starts[index], starts[index + 1])
                        states[layer, own] = as_array(vectors[row, given.places[index]])
            told()
    if not np.isfinite(states).all():
        raise UnavailableError(
            f"{about.name} gives vectors that are not finite for these lines, so there is nothing to learn "
            "from. Use float32."
        )
    pairs = [*zip(given.texts, given.places, strict=True)]
    names = given.texts[0].inputs
    values = {name: np.concatenate([text.inputs[name][own] for text, own in pairs]) for name in names}
    return MaskTargets(states, values, np.repeat(given.lines, [len(own) for own in given.places]))


class WordHead:
    """What a model's own head for words makes of vectors that belong to no one text.

    Whoever calls it is within `Checkpoint.running`.

    Args:
        passed: any text's way through the model, for a norm that follows the layers.
    """

    def __init__(self, output: OutputHead, passed: ForwardPass) -> None:
        passed.check_pooler()
        self._output, self._passed, self._norm = output, passed, passed.norm
        states = passed.states[0]
        self.device, self._kind = states.device, states.dtype
        self.kind = torch.promote_types(states.dtype, torch.float32)

    def __call__(
        self, states: torch.Tensor, inputs: Mapping[str, torch.Tensor], last: bool = False
    ) -> torch.Tensor:
        """The words' logits, [place, word], in `kind`.

        Args:
            states: [place, hidden].
            inputs: what the model was given there, name → [place].
            last: they are last hidden states, after the norm, where there is any.
        """
        rows = states.to(self._kind)[None]
        rows = rows if last or self._norm is None else self._norm.on(rows)
        of_one = {name: values[None] for name, values in inputs.items()}
        logits = self._output.answer(of_one, rows, self._passed.pooled(rows))[0]
        return logits.to(self.kind)

    def tensor(self, values: Array) -> torch.Tensor:
        """An array where the model is."""
        return torch.from_numpy(values).to(self.device)


def divergence(answer: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Kullback and Leibler's Σ p log(p / q) in nats, [place], of logarithms of p and q, [place, word]."""
    return F.kl_div(lens, answer, reduction="none", log_target=True).sum(dim=-1)


class _AffineMap:
    """h + s (A x + b): x is h less its mean and over its spread, s the root of the mean square of h.

    So steps of one size suit every layer of every family, whatever the lengths of its vectors. A and b begin
    as 0, and the map as the identity.
    """

    def __init__(self, states: torch.Tensor) -> None:
        self.states = states
        spread = states.std(dim=0, correction=0)
        self.mean, self.spread = states.mean(dim=0), torch.where(spread > 0, spread, torch.ones_like(spread))
        self.scale = states.square().mean().sqrt()
        size = states.shape[1]
        self.weight = states.new_zeros((size, size)).requires_grad_()
        self.bias = states.new_zeros(size).requires_grad_()

    def on(self, rows: torch.Tensor) -> torch.Tensor:
        """What it makes of some places."""
        states = self.states[rows]
        return states + self.scale * F.linear((states - self.mean) / self.spread, self.weight, self.bias)

    def folded(self) -> tuple[Array, Array]:
        """A and b of h + A h + b, [hidden, hidden] and [hidden]."""
        with torch.no_grad():
            weight = (self.scale * self.weight / self.spread).double()
            bias = self.scale.double() * self.bias.double() - weight @ self.mean.double()
            kind = self.states.dtype
            return weight.to(kind).cpu().numpy(), bias.to(kind).cpu().numpy()


def trained(head: WordHead, given: MaskTargets, steps: int, seed: int, told: Told) -> tuple[Array, Array]:
    """The maps of all layers but the last, [layer, hidden, hidden] and [layer, hidden].

    Each step lowers the mean divergence of each layer's answer from the last layer's at some of the masks.
    """
    maps = [_AffineMap(head.tensor(states)) for states in given.states[:-1]]
    last = head.tensor(given.states[-1])
    inputs = {name: head.tensor(values) for name, values in given.inputs.items()}
    rate = RATE / given.states.shape[-1]
    optimizer = torch.optim.Adam([part for one in maps for part in (one.weight, one.bias)], lr=rate)
    for step, chosen in enumerate(_chosen(len(given), steps, seed)):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        rows = head.tensor(chosen)
        there = {name: values[rows] for name, values in inputs.items()}
        with torch.no_grad():
            answer = head(last[rows], there, last=True).softmax(dim=-1)
        for one in maps:
            logits = head(one.on(rows), there)
            # The divergence's own gradient: torch would find the same, by way of more tables as wide as the
            # vocabulary.
            slope = (logits.detach().softmax(dim=-1) - answer) / len(rows)
            # Of the map alone: the model's own weights stay without a gradient.
            one.weight.grad, one.bias.grad = torch.autograd.grad(logits, (one.weight, one.bias), slope)
        optimizer.step()
        told()
    weights, biases = zip(*(one.folded() for one in maps), strict=True)
    return np.stack(weights), np.stack(biases)


def _chosen(count: int, steps: int, seed: int) -> Array:
    """Which places each step looks at, [step, place]: all in random order, then all again in another."""
    random = np.random.default_rng(seed)
    size = min(BATCH, count)
    rounds = [random.permutation(count) for _ in range(math.ceil(steps * size / count))]
    return np.concatenate(rounds)[: steps * size].reshape(steps, size)


def losses(head: WordHead, given: MaskTargets, weights: Array, biases: Array, told: Told) -> Array:
    """Mean divergence from the last layer's answer in bits, float64 [plain or tuned, layer]."""
    found = np.zeros((2, len(weights)))
    with torch.inference_mode():
        for start in range(0, len(given), BATCH):
            own = slice(start, start + BATCH)
            inputs = {name: head.tensor(values[own]) for name, values in given.inputs.items()}
            states = [head.tensor(layer[own]) for layer in given.states]
            answer = head(states[-1], inputs, last=True).log_softmax(dim=-1)
            for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                plain = states[layer]
                tuned = plain + F.linear(plain, head.tensor(weight), head.tensor(bias))
                for row, vectors in enumerate((plain, tuned)):
                    lens = head(vectors, inputs).log_softmax(dim=-1)
                    found[row, layer] += float(divergence(answer, lens).double().sum())
            told()
    return found / len(given) / math.log(2)
