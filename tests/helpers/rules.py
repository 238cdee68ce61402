"""Tiny models that are trained on first use, on tasks with a known rule that attributions should find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tests.helpers.families import BERT, fast

NAMES, PLACES = ("anna", "otto"), ("paris", "rome")
OTHERS = ("cold", "warm", "stone", "tree", "boat", "river", "small", "wide")
KEY, BEFORE = "red", "mister"
VOCABULARY = (*BERT.ordered, KEY, BEFORE, "who", "where", *NAMES, *PLACES, *OTHERS)

_STEPS, _BATCH, _ENOUGH = 800, 32, 0.05


@dataclass(frozen=True)
class Rule:
    """A training task with a known rule.

    Attributes:
        task: name of the task, such as "text-classification".
        sample: function from a random generator to a text, its pair or None, and the answer: a class, a label
            per word, the position of the answer among the words of the pair, or the word at the mask.
        labels: labels of the head.
        spread: standard deviation of the initial weights. With the small default of 0.02, the model does not
            learn to find the answer to a question.
    """

    task: str
    sample: Callable[[torch.Generator], tuple[list[str], list[str] | None, Any]]
    labels: tuple[str, ...] = ()
    spread: float = 0.02


def _some(random: torch.Generator, words: Sequence[str], count: int) -> list[str]:
    return [words[int(index)] for index in torch.randint(len(words), (count,), generator=random)]


def _one_word_decides(random: torch.Generator) -> tuple[list[str], None, int]:
    words, has_key = _some(random, OTHERS, 6), int(torch.randint(2, (), generator=random))
    if has_key:
        words[int(torch.randint(6, (), generator=random))] = KEY
    return words, None, has_key


def _the_neighbor_decides(random: torch.Generator) -> tuple[list[str], None, list[int]]:
    words = _some(random, (*OTHERS, BEFORE, BEFORE, BEFORE), 6)
    return words, None, [0, *(int(before == BEFORE) for before in words[:-1])]


def _the_question_decides(random: torch.Generator) -> tuple[list[str], list[str], int]:
    answer_class = int(torch.randint(2, (), generator=random))
    context = _some(random, OTHERS, 2)
    right, wrong = ((NAMES, PLACES), (PLACES, NAMES))[answer_class]
    place = int(torch.randint(3, (), generator=random))
    context.insert(place, _some(random, right, 1)[0])
    other = int(torch.randint(4, (), generator=random))
    context.insert(other, _some(random, wrong, 1)[0])
    return [("who", "where")[answer_class]], context, place + (other <= place)


def _the_word_before_decides(random: torch.Generator) -> tuple[list[str], None, str]:
    start = int(torch.randint(len(OTHERS), (), generator=random))
    words = [*_some(random, NAMES, 2), OTHERS[start], BERT.mask, *_some(random, PLACES, 2)]
    return words, None, OTHERS[(start + 1) % len(OTHERS)]


RULES = {
    "text-classification": Rule("text-classification", _one_word_decides, ("plain", "marked")),
    "token-classification": Rule("token-classification", _the_neighbor_decides, ("O", "NAMED")),
    "question-answering": Rule("question-answering", _the_question_decides, spread=0.1),
    "fill-mask": Rule("fill-mask", _the_word_before_decides),
}
_CLASSES: dict[str, Any] = {
    "text-classification": transformers.BertForSequenceClassification,
    "token-classification": transformers.BertForTokenClassification,
    "question-answering": transformers.BertForQuestionAnswering,
    "fill-mask": transformers.BertForMaskedLM,
}


def teach(task: str, folder: Path) -> Path:
    """Train a tiny model on the rule of a task, save it, and return the folder."""
    rule, tokenizer = RULES[task], _tokenizer()
    settings = {"id2label": dict(enumerate(rule.labels))} if rule.labels else {}
    torch.manual_seed(0)
    model = _CLASSES[task](
        transformers.BertConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=rule.spread,
            **settings,
        )
    ).double()  # float64, so that training gives the same weights on every processor
    random = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    for _ in range(_STEPS):
        loss = model(**_batch(rule, tokenizer, random)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < _ENOUGH:  # stop, because attention would saturate and have no gradient
            break
    else:
        raise AssertionError(f"the rule of {task} was not learned: loss {loss.item():.3f}")
    model.float().eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> Any:
    tokenizer = Tokenizer(
        models.WordPiece({word: index for index, word in enumerate(VOCABULARY)}, unk_token=BERT.unk)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(BERT.ordered)
    tokenizer.post_processor = BERT.processor(tokenizer)
    return fast(tokenizer, BERT, model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def _batch(rule: Rule, tokenizer: Any, random: torch.Generator) -> dict[str, Any]:
    examples = [rule.sample(random) for _ in range(_BATCH)]
    texts = [" ".join(words) for words, _, _ in examples]
    pairs = [" ".join(pair) for _, pair, _ in examples if pair is not None]
    batch = dict(tokenizer(texts, *([pairs] if pairs else []), return_tensors="pt"))
    answers = [answer for _, _, answer in examples]
    if rule.task == "question-answering":
        # The answer position is preceded by [CLS], the single word of the question, and [SEP].
        places = torch.tensor(answers) + 3
        return batch | {"start_positions": places, "end_positions": places}
    if rule.task == "fill-mask":
        labels = torch.full_like(batch["input_ids"], -100)
        labels[batch["input_ids"] == tokenizer.mask_token_id] = torch.tensor(
            tokenizer.convert_tokens_to_ids(answers)
        )
        return batch | {"labels": labels}
    if rule.task == "token-classification":
        return batch | {"labels": torch.tensor([[-100, *row, -100] for row in answers])}
    return batch | {"labels": torch.tensor(answers)}
