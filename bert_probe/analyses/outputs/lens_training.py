"""Training of a tuned lens: an affine map per layer, trained to give the model's prediction at masks."""

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
from bert_probe.model.forward import as_array, batch, group_by_length, layer_states
from bert_probe.model.layers import ForwardPass
from bert_probe.model.outputs import OutputHead
from bert_probe.model.trace import Array
from bert_probe.text.formats import ValidationErrors

MASKED_SHARE = 0.15
"""Share of a line's tokens that are masked together, as in BERT's training (Devlin et al. 2019)."""
PASSES = 4
"""Number of times that each line is used, with different masks each time, for more training data."""
BATCH_SIZE = 64
"""Number of masked words per training step."""
LEARNING_RATE = 1.0
"""Product of the hidden size and the initial learning rate of Adam (Kingma and Ba 2015).

The learning rate decays linearly to 0.
"""
GROUP_TOKENS = 2048
"""Maximum number of tokens in a batch, padding included.

The limit is low because the hidden states of all layers are in memory.
"""
MAX_BYTES = 2_000_000_000
"""Maximum size of the hidden states that are used for training and evaluation, in bytes."""

OnStep = Callable[[], None]
"""Type of a callback without arguments that is called after each step, to report progress."""


@dataclass(frozen=True, eq=False)
class MaskTargets:
    """Hidden states and model inputs at the masked positions of all lines.

    Attributes:
        states: hidden states, [layer + 1, mask, hidden].
        inputs: mapping from the name of each model input to its values at the masks, [mask].
        lines: line index of each mask, [mask].
    """

    states: Array
    inputs: Mapping[str, Array]
    lines: Array

    def of(self, selected: Array) -> MaskTargets:
        """Return the hidden states and inputs at the selected masks.

        Args:
            selected: whether each mask is selected, bool [mask].
        """
        inputs = {name: values[selected] for name, values in self.inputs.items()}
        return MaskTargets(self.states[:, selected], inputs, self.lines[selected])

    def __len__(self) -> int:
        return len(self.lines)


@dataclass(frozen=True, eq=False)
class MaskedLines:
    """Lines with some of their tokens masked, grouped into batches.

    Attributes:
        texts: masked model inputs; each line occurs `PASSES` times.
        lines: line index of each text.
        places: token positions of the masks in each text.
        groups: indices of the texts of each batch.
    """

    texts: Sequence[ModelInputs]
    lines: Sequence[int]
    places: Sequence[Array]
    groups: Sequence[Sequence[int]]


def mask_lines(checkpoint: Checkpoint, lines: Sequence[ModelInputs], seed: int) -> MaskedLines:
    """Return `PASSES` copies of each line, with randomly selected tokens masked in each copy.

    In each copy, `MASKED_SHARE` of the tokens that can be masked, at least one, are masked. Special and
    unknown tokens are never masked.

    Args:
        seed: seed of the random selection.

    Raises:
        EmptyTextError: no line has a token that can be masked.
        TextError: the hidden states at all masks need more than `MAX_BYTES`.
    """
    random, mask = np.random.default_rng(seed), checkpoint.tokenizer.mask_token_id
    specials = checkpoint.tokenizer.all_special_ids
    texts = [mask_tokens(line, specials, mask, random) for _ in range(PASSES) for line in lines]
    places = [np.flatnonzero(text.inputs["input_ids"] == mask) for text in texts]
    description, count = checkpoint.description, sum(map(len, places))
    if not count:
        raise EmptyTextError(
            "No line has a token that can be masked. Use lines with words from the model's vocabulary."
        )
    size = (
        (description.layers + 1)
        * count
        * description.hidden_size
        * (8 if description.dtype == "float64" else 4)
    )
    if size > MAX_BYTES:
        raise TextError(
            f"{len(lines):,} lines have {count:,} masked words, whose vectors need {size / 1e9:.1f} GB, but "
            f"at most {MAX_BYTES / 1e9:.0f} GB are allowed. Use fewer lines: a few thousand are enough."
        )
    groups = group_by_length([len(text) for text in texts], GROUP_TOKENS, checkpoint.pads)
    return MaskedLines(texts, [*range(len(lines))] * PASSES, places, groups)


def encode_lines(
    checkpoint: Checkpoint, lines: Sequence[tuple[int, str]], truncate: bool
) -> list[ModelInputs]:
    """Return the model inputs of numbered lines.

    Raises:
        InvalidFileError: one or more lines cannot be encoded. The message lists the line numbers.
    """
    inputs, errors = [], ValidationErrors("The list")
    for number, line in lines:
        try:
            inputs.append(checkpoint.encoder.inputs(line, truncate=truncate))
        except TextError as error:
            errors.add(number, str(error))
    errors.check()
    return inputs


def mask_tokens(
    line: ModelInputs, specials: Sequence[int], mask: int, random: np.random.Generator
) -> ModelInputs:
    """Return a text with `MASKED_SHARE` of its tokens masked, at least one; special tokens are never masked.

    Args:
        line: the model inputs of the text.
        specials: ids of the special tokens.
        mask: id of the mask token.
        random: random generator that selects the tokens.
    """
    ids = line.inputs["input_ids"].copy()
    candidates = np.flatnonzero(~np.isin(ids, specials))
    count = max(1, round(MASKED_SHARE * len(candidates))) if len(candidates) else 0
    ids[random.choice(candidates, count, replace=False)] = mask
    return ModelInputs({**line.inputs, "input_ids": ids}, line.dropped)


def collect_targets(checkpoint: Checkpoint, lines: MaskedLines, on_step: OnStep) -> MaskTargets:
    """Run the model on the masked lines and return its hidden states at the masks.

    Args:
        on_step: called after each batch.

    Raises:
        OutOfMemoryError: there is not enough memory.
        UnavailableError: a hidden state is not finite, or an in-memory model changed during the run.
    """
    starts = np.cumsum([0, *map(len, lines.places)])
    description = checkpoint.description
    with memory_errors("The hidden states of these lines do not fit in memory. Use fewer lines."):
        dtype = np.float64 if description.dtype == "float64" else np.float32
        states = np.empty((description.layers + 1, starts[-1], description.hidden_size), dtype)
        for group in lines.groups:
            with torch.inference_mode(), checkpoint.running() as model:
                inputs = batch(checkpoint, [lines.texts[index] for index in group])
                layers = layer_states(model(**inputs, output_hidden_states=True))
                for row, index in enumerate(group):
                    for layer, vectors in enumerate(layers):
                        columns = slice(starts[index], starts[index + 1])
                        states[layer, columns] = as_array(vectors[row, lines.places[index]])
            on_step()
    if not np.isfinite(states).all():
        raise UnavailableError(
            f"The hidden states of {description.name} are not finite for these lines, so a tuned lens "
            "cannot be trained. Use float32."
        )
    pairs = [*zip(lines.texts, lines.places, strict=True)]
    names = lines.texts[0].inputs
    values = {name: np.concatenate([text.inputs[name][columns] for text, columns in pairs]) for name in names}
    return MaskTargets(states, values, np.repeat(lines.lines, [len(columns) for columns in lines.places]))


class WordHead:
    """Applies the masked-language-modeling head of a model to hidden states, which can be from many texts.

    An instance can be called only inside `Checkpoint.running`.

    Args:
        output: the masked-language-modeling head.
        passed: a recorded forward pass of the model. Only the properties of the model are read from it, such
            as the norm after the last layer, so the text does not matter.
    """

    def __init__(self, output: OutputHead, passed: ForwardPass) -> None:
        passed.check_pooler()
        self._output, self._passed, self._norm = output, passed, passed.norm
        states = passed.states[0]
        self.device, self._dtype = states.device, states.dtype
        self.dtype = torch.promote_types(states.dtype, torch.float32)

    def __call__(
        self, states: torch.Tensor, inputs: Mapping[str, torch.Tensor], last: bool = False
    ) -> torch.Tensor:
        """Return the logits over the vocabulary at the masked positions, [mask, token], in `dtype`.

        Args:
            states: hidden states at the masked positions, [mask, hidden].
            inputs: mapping from the name of each model input to its values at the masks, [mask].
            last: whether `states` are last hidden states, to which the norm has already been applied.
        """
        rows = states.to(self._dtype)[None]
        rows = rows if last or self._norm is None else self._norm.on(rows)
        batch_of_one = {name: values[None] for name, values in inputs.items()}
        logits = self._output.answer(batch_of_one, rows, self._passed.pooled(rows))[0]
        return logits.to(self.dtype)

    def tensor(self, values: Array) -> torch.Tensor:
        """Convert an array to a tensor on the model's device."""
        return torch.from_numpy(values).to(self.device)


def divergence(answer: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Return the Kullback-Leibler divergence Σ p log(p / q) at each mask, in nats, [mask].

    Args:
        answer: log p, the log probabilities that the model predicts, [mask, word].
        lens: log q, the log probabilities that the lens predicts, [mask, word].
    """
    return F.kl_div(lens, answer, reduction="none", log_target=True).sum(dim=-1)


class _AffineMap:
    """The map h + s (A x + b), where x is h standardized by feature and s is the root mean square of h.

    Because of the standardization, the same learning rate can be used for all layers and models, even if the
    norms of their vectors differ. A and b are initialized to 0, so that the map is the identity at first.
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
        """Return the mapped hidden states of the masks with the given indices, [mask, hidden]."""
        states = self.states[rows]
        return states + self.scale * F.linear((states - self.mean) / self.spread, self.weight, self.bias)

    def folded(self) -> tuple[Array, Array]:
        """Return A and b of the equivalent map h + A h + b without standardization.

        A has shape [hidden, hidden], and b has shape [hidden].
        """
        with torch.no_grad():
            weight = (self.scale * self.weight / self.spread).double()
            bias = self.scale.double() * self.bias.double() - weight @ self.mean.double()
            dtype = self.states.dtype
            return weight.to(dtype).cpu().numpy(), bias.to(dtype).cpu().numpy()


def train_maps(
    head: WordHead, targets: MaskTargets, steps: int, seed: int, on_step: OnStep
) -> tuple[Array, Array]:
    """Train the affine maps of all layers but the last, and return their weights and biases.

    The weights have shape [layer, hidden, hidden], and the biases [layer, hidden]. The loss of each layer is
    the mean `divergence` between the model's prediction and the prediction from the mapped hidden states.

    Args:
        head: the masked-language-modeling head.
        targets: hidden states and model inputs at the masks.
        steps: number of training steps.
        seed: random seed of the order of the masks.
        on_step: called after each step.
    """
    maps = [_AffineMap(head.tensor(states)) for states in targets.states[:-1]]
    last = head.tensor(targets.states[-1])
    inputs = {name: head.tensor(values) for name, values in targets.inputs.items()}
    learning_rate = LEARNING_RATE / targets.states.shape[-1]
    optimizer = torch.optim.Adam(
        [part for affine in maps for part in (affine.weight, affine.bias)], lr=learning_rate
    )
    for step, selected in enumerate(_step_rows(len(targets), steps, seed)):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / steps)
        rows = head.tensor(selected)
        row_inputs = {name: values[rows] for name, values in inputs.items()}
        with torch.no_grad():
            answer = head(last[rows], row_inputs, last=True).softmax(dim=-1)
        for affine in maps:
            logits = head(affine.on(rows), row_inputs)
            # Compute the gradient of the loss with respect to the logits in closed form: autograd would
            # allocate more arrays of the size of the vocabulary.
            gradient = (logits.detach().softmax(dim=-1) - answer) / len(rows)
            # Unlike backward(), grad() does not compute gradients of the model's weights.
            affine.weight.grad, affine.bias.grad = torch.autograd.grad(
                logits, (affine.weight, affine.bias), gradient
            )
        optimizer.step()
        on_step()
    weights, biases = zip(*(affine.folded() for affine in maps), strict=True)
    return np.stack(weights), np.stack(biases)


def _step_rows(count: int, steps: int, seed: int) -> Array:
    """Return the mask indices of each training step, [step, mask]; masks are reshuffled in each epoch."""
    random = np.random.default_rng(seed)
    size = min(BATCH_SIZE, count)
    rounds = [random.permutation(count) for _ in range(math.ceil(steps * size / count))]
    return np.concatenate(rounds)[: steps * size].reshape(steps, size)


def measure_losses(
    head: WordHead, targets: MaskTargets, weights: Array, biases: Array, on_step: OnStep
) -> Array:
    """Return the mean `divergence` between the model's prediction and that of each earlier layer, in bits.

    The result is float64 of shape [2, layer]. Row 0 is for the logit lens, and row 1 for the tuned lens.

    Args:
        head: the masked-language-modeling head.
        targets: hidden states and model inputs at the masks.
        weights, biases: weights and biases of the tuned lens, as returned by `train_maps`.
        on_step: called after each batch.
    """
    losses = np.zeros((2, len(weights)))
    with torch.inference_mode():
        for start in range(0, len(targets), BATCH_SIZE):
            rows = slice(start, start + BATCH_SIZE)
            inputs = {name: head.tensor(values[rows]) for name, values in targets.inputs.items()}
            states = [head.tensor(layer[rows]) for layer in targets.states]
            answer = head(states[-1], inputs, last=True).log_softmax(dim=-1)
            for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                logit_lens = states[layer]
                tuned = logit_lens + F.linear(logit_lens, head.tensor(weight), head.tensor(bias))
                for row, vectors in enumerate((logit_lens, tuned)):
                    lens = head(vectors, inputs).log_softmax(dim=-1)
                    losses[row, layer] += float(divergence(answer, lens).double().sum())
            on_step()
    return losses / len(targets) / math.log(2)
