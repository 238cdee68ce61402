"""Limit the length of texts and the memory of tasks, and truncate tokens."""

from __future__ import annotations

import base64
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from bert_probe.errors import TextError, TokenizerError, TooLongError, UnavailableError

MAX_CHARACTERS = 250_000
"""Maximum number of characters of a text, even if its tokens are truncated.

The longest input of common encoders has 8,192 tokens. The limit allows 30 characters per token, while few
languages average more than 6.
"""

MAX_TOKENS = 16_384
"""Maximum number of input tokens for every model, because the cost of attention grows quadratically."""

MAX_SERVER_TOKENS = 2_500
"""Maximum number of tokens of a trace on a public server, because the memory of many analyses grows with the
square of the number. Texts are not truncated to this length, because the results would differ elsewhere.
"""

MAX_EXPANSION = 100
"""Maximum factor by which the normalizer and the pre-tokenizer of a tokenizer together, and its template, may
lengthen a text."""

_LONGEST_LIGATURE = 18
"""Number of characters to which U+FDFA, the longest ligature, is expanded by normalization."""


MAX_SPACES = 10_000
"""Maximum number of consecutive spaces, tabs and line breaks in a text. The regular expressions of some
tokenizers, such as that of DeepSeek-LLM, take time that grows with its square: a second for 15,000.
"""
_SPACES = re.compile(r"\s+")


def check_list(texts: object, item_name: str) -> None:
    """Raise TextError unless an object is a list or another iterable.

    Strings, mappings and DataFrames are refused too, because their items are characters or names.
    """
    is_iterable = isinstance(texts, Iterable)
    if not is_iterable or isinstance(texts, str | bytes | Mapping) or hasattr(texts, "columns"):
        kind = "string" if isinstance(texts, str) else type(texts).__name__
        raise TextError(f"Pass a list of {item_name}s, not a {kind}.")


def check_text(text: object) -> None:
    """Raise an error if a text is not a string, is too long, or cannot be encoded in UTF-8.

    Raises:
        TooLongError: the text has more than `MAX_CHARACTERS` characters.
        TextError: the text is not a string, has more than `MAX_SPACES` consecutive spaces, or contains an
            unpaired surrogate.
    """
    if not isinstance(text, str):
        raise TextError(f"A text must be a string, not {type(text).__name__}.")
    character_count = len(text) if len(text) > MAX_CHARACTERS else _expanded_length(text)
    if character_count > MAX_CHARACTERS:
        expanded = " after its ligatures are expanded" if character_count > len(text) else ""
        raise TooLongError(
            f"The text has {character_count:,} characters{expanded}, but at most {MAX_CHARACTERS:,} are "
            "allowed, even with truncation. Shorten the text."
        )
    spaces = max(map(len, _SPACES.findall(text)), default=0) if len(text) > MAX_SPACES else 0
    if spaces > MAX_SPACES:
        raise TextError(
            f"The text has {spaces:,} consecutive spaces or line breaks, but at most {MAX_SPACES:,} are "
            "allowed. Remove spaces."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TextError(
            f"Character {error.start} is half of a surrogate pair, which cannot be encoded. Remove "
            "this character."
        ) from None


_MAX_STEPS, _MAX_EXPRESSIONS = 100, 20
"""Maximum number of normalizers or pre-tokenizers of a tokenizer, and of those with a regular expression,
which can take seconds each; real tokenizers have about ten and three.
"""
_MAX_WORD_LENGTH, _MAX_PIECE_LENGTH = 1_000, 256
"""Maximum length of the words that WordPiece splits, and of the pieces of Unigram, in characters. The time to
encode a text grows with the square of the first and in proportion to the second. Real tokenizers have 100 to
200 and 16 to 64.
"""
_MAX_WORD_STEPS = 2_000_000
"""Maximum product of the factor by which a text may be lengthened and the squared length of the words that
WordPiece splits.
"""


def check_expansion(tokenizer: Any) -> None:
    """Raise an error if a tokenizer's files can make a text fill the memory or take minutes.

    Replacing "a" by "aa" forty times turns one character into a trillion, and a template may insert a text
    any number of times.

    Args:
        tokenizer: a transformers tokenizer. Slow tokenizers are not checked, because their class, not their
            files, determines the normalization.

    Raises:
        TokenizerError: the normalizer or the template can expand a text more than `MAX_EXPANSION` times, or
            the normalizer, the pre-tokenizer or the model can take long.
    """
    if not getattr(tokenizer, "is_fast", False):
        return
    backend = tokenizer.backend_tokenizer
    _check_time(backend)
    expansions = {
        "normalizer": _expansion(backend.normalizer, _normalizer_expansion),
        "pre_tokenizer": _expansion(backend.pre_tokenizer, _pre_tokenizer_expansion),
        "post_processor": _expansion(backend.post_processor, _template_expansion),
    }
    expansions["pre_tokenizer"] *= expansions["normalizer"]
    for name, expansion in expansions.items():
        if expansion > MAX_EXPANSION:
            raise TokenizerError(
                f"The {name} in tokenizer.json can make a text more than {MAX_EXPANSION} times longer, "
                "which could exhaust the memory. Use the tokenizer.json that belongs to the model."
            )
    _check_words(backend, expansions["pre_tokenizer"])


def _check_words(backend: Any, expansion: float) -> None:
    longest = getattr(backend.model, "max_input_chars_per_word", 0)  # only WordPiece has this attribute
    limit = min(_MAX_WORD_LENGTH, math.isqrt(int(_MAX_WORD_STEPS / expansion)))
    if longest > limit:
        raise _too_slow(f"max_input_chars_per_word is {longest:,}, but at most {limit:,}")


def _too_slow(problem: str) -> TokenizerError:
    return TokenizerError(
        f"In tokenizer.json, {problem} are supported, because encoding a text could take minutes. Use "
        "the tokenizer.json that belongs to the model."
    )


def _check_time(backend: Any) -> None:
    problem = ""
    if type(backend.model).__name__ == "Unigram":  # the server imports this module without tokenizers
        longest = max(map(len, backend.get_vocab()), default=0)
        if longest > _MAX_PIECE_LENGTH:
            problem = f"a piece has {longest:,} characters, but at most {_MAX_PIECE_LENGTH}"
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        longest = len(getattr(backend.model, name, None) or "")
        if longest > _MAX_PIECE_LENGTH:
            problem = f"{name} has {longest:,} characters, but at most {_MAX_PIECE_LENGTH}"
    for name in ("normalizer", "pre_tokenizer"):
        component = getattr(backend, name)
        steps = [] if component is None else _steps(json.loads(component.__getstate__()))
        if len(steps) > _MAX_STEPS:
            problem = f"the {name} has {len(steps):,} steps, but at most {_MAX_STEPS}"
        expressions = sum("Regex" in (step.get("pattern") or ()) for step in steps)
        if expressions > _MAX_EXPRESSIONS:
            problem = f"the {name} has {expressions} regular expressions, but at most {_MAX_EXPRESSIONS}"
    if problem:
        raise _too_slow(problem)


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the states of all normalizers or pre-tokenizers, nested ones included."""
    parts = [*state.get("normalizers", ()), *state.get("pretokenizers", ())]
    return [state, *(step for part in parts for step in _steps(part))]


def _expansion(component: Any, of_state: Callable[[dict[str, Any]], float]) -> float:
    return 1.0 if component is None else of_state(json.loads(component.__getstate__()))


_BYTES = 4
"""Number of characters with which ByteLevel replaces a character of four bytes in UTF-8."""


def _normalizer_expansion(state: dict[str, Any]) -> float:
    """Return an upper bound on the factor by which a normalizer of tokenizer.json lengthens a text."""
    match state.get("type"):
        case "Sequence":
            return math.prod(map(_normalizer_expansion, state["normalizers"]))
        case "Replace":
            # A regular expression has no "String", and may match between all characters.
            pattern = state["pattern"].get("String", "")
            return 1 + len(state["content"]) if not pattern else max(1, len(state["content"]) / len(pattern))
        case "Prepend":
            return 1 + len(state["prepend"])
        case "Precompiled":
            return _longest_replacement(base64.b64decode(state["precompiled_charsmap"]))
        case "ByteLevel":
            return _BYTES
        case "BertNormalizer" if state.get("handle_chinese_chars", True):
            return 3  # a space before and after each Chinese character
    return 1


def _pre_tokenizer_expansion(state: dict[str, Any]) -> float:
    """Return an upper bound on the factor by which a pre-tokenizer of tokenizer.json lengthens a text."""
    match state.get("type"):
        case "Sequence":
            return math.prod(map(_pre_tokenizer_expansion, state["pretokenizers"]))
        case "ByteLevel":
            return _BYTES + bool(state.get("add_prefix_space", True))
        case "Metaspace":
            return 2  # a prefix for each part, which can be a single character
    return 1


def _longest_replacement(characters: bytes) -> int:
    """Return the number of characters of the longest replacement in a SentencePiece character map.

    The map consists of the size of a search tree (4 bytes), the tree, and the zero-terminated replacements.
    """
    texts = characters[4 + int.from_bytes(characters[:4], "little") :]
    return max(1, *(len(text.decode("utf-8", "replace")) for text in texts.split(b"\0")))


def _template_expansion(state: dict[str, Any]) -> int:
    """Return the largest factor by which a template of tokenizer.json can repeat a text or expand a token."""
    if state.get("type") == "Sequence":
        return max([1, *map(_template_expansion, state["processors"])])
    templates = [state.get(name, []) for name in ("single", "pair")]
    added = [len(token["ids"]) for token in state.get("special_tokens", {}).values()]
    return max([1, *map(len, templates), *added])


def _expanded_length(text: str) -> int:
    """Return an upper bound on the length of a text after normalization, which expands ligatures."""
    if text.isascii() or len(text) * _LONGEST_LIGATURE <= MAX_CHARACTERS:
        return len(text)
    # Normalize each character separately, because a long run of combining marks takes quadratic time.
    return sum(
        count * len(unicodedata.normalize("NFKC", character)) for character, count in Counter(text).items()
    )


def max_input_tokens(accepted: int | None) -> int:
    """Return the maximum number of input tokens, which is at most `MAX_TOKENS`.

    Args:
        accepted: the model's own limit; None for no limit.
    """
    return MAX_TOKENS if accepted is None else min(accepted, MAX_TOKENS)


def max_trace_tokens(accepted: int | None) -> int:
    """Return the maximum number of tokens of a trace.

    With `limit_tasks`, it is at most `MAX_SERVER_TOKENS`, otherwise `max_input_tokens`.

    Args:
        accepted: the model's own limit; None for no limit.
    """
    limit = max_input_tokens(accepted)
    return limit if _task_bytes is None else min(limit, MAX_SERVER_TOKENS)


def check_trace_tokens(tokens: int) -> None:
    """Raise an error if a text has too many tokens for a server with limited tasks.

    Raises:
        TooLongError: `limit_tasks` has set a limit, and there are more than `MAX_SERVER_TOKENS` tokens.
    """
    if _task_bytes is not None and tokens > MAX_SERVER_TOKENS:
        raise TooLongError(
            f"The text has {tokens:,} tokens, but this server supports at most {MAX_SERVER_TOKENS:,}. "
            "Shorten the text."
        )


def too_many_tokens(tokens: int, limit: int) -> TooLongError:
    """Return the error for a text with more tokens than the limit."""
    if limit < MAX_TOKENS:
        reason = f"this model accepts at most {limit:,}"
    else:
        reason = f"at most {limit:,} are supported, regardless of the model"
    return TooLongError(
        f"The text has {tokens:,} tokens, but {reason}. Shorten the text, or turn on truncation."
    )


def kept_positions(
    texts: Sequence[int | None], limit: int, side: Literal["left", "right"] = "right"
) -> list[int]:
    """Return the token positions that remain after transformers' default truncation, `longest_first`.

    Args:
        texts: index of each token's text, 0 or 1; None for a token that the tokenizer added.
        limit: maximum number of remaining tokens. Added tokens count and always remain.
        side: the end at which tokens are removed.
    """
    first, second = texts.count(0), texts.count(1)
    added = len(texts) - first - second
    kept_counts = _shares(first, second, max(0, limit - added))
    skipped = (first - kept_counts[0], second - kept_counts[1]) if side == "left" else (0, 0)
    positions: list[int] = []
    counts = [0, 0]
    for position, text in enumerate(texts):
        if text is None:
            positions.append(position)
            continue
        if skipped[text] <= counts[text] < skipped[text] + kept_counts[text]:
            positions.append(position)
        counts[text] += 1
    return positions


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the number of tokens of both texts that remain after truncation, at most `room` in total.

    The longer text is shortened until both texts are equally long; then both are shortened.
    """
    if first + second <= room:
        return first, second
    shorter, longer = sorted((first, second))
    if shorter <= room // 2:
        longer = room - shorter
    else:
        shorter, longer = room // 2, room - room // 2
    return (shorter, longer) if first <= second else (longer, shorter)


_task_bytes: int | None = None


def limit_tasks(max_bytes: int | None) -> None:
    """Set the maximum size in bytes of the vectors of a single task; None for no limit.

    Call this before a server starts.
    """
    global _task_bytes
    _task_bytes = max_bytes


def are_tasks_limited() -> bool:
    """Return whether `limit_tasks` has set a limit, as on a public server."""
    return _task_bytes is not None


def task_limit(max_bytes: int) -> int:
    """Return the maximum size in bytes of the vectors of a single task.

    This is `max_bytes`, or the limit that `limit_tasks` has set, as on a public server, if it is smaller.
    """
    return max_bytes if _task_bytes is None else min(max_bytes, _task_bytes)


def check_task_bytes(size: int, items: str, remedy: str) -> None:
    """Raise an error if the vectors of a task are too large for a server with limited tasks.

    Args:
        size: size of the vectors in bytes.
        items: what the vectors represent, for the message, such as "5,000 texts".
        remedy: a sentence that says how to reduce the size.

    Raises:
        UnavailableError: the size exceeds the limit that `limit_tasks` has set.
    """
    limit = task_limit(size)
    if size > limit:
        raise UnavailableError(
            f"The vectors of {items} need {size / 1e6:,.0f} MB, but this server allows {limit / 1e6:,.0f} "
            f"MB. {remedy}"
        )


MAX_ATTENTION_BYTES = 300_000_000
"""Maximum size in bytes of the attention of several heads of a layer on a public server. One head of 8,192
tokens has 268 MB.
"""


def check_attention_bytes(tokens: int, heads: int, arrays: int = 1) -> None:
    """Raise an error if the attention of several heads is too large for a server with limited tasks.

    Args:
        tokens: number of tokens of the text.
        heads: number of heads.
        arrays: number of arrays of shape [head, query, key], in float32, that are in memory at once.

    Raises:
        UnavailableError: `limit_tasks` has set a limit, and the arrays have more than `MAX_ATTENTION_BYTES`.
    """
    size = 4 * arrays * heads * tokens**2
    if _task_bytes is not None and size > MAX_ATTENTION_BYTES:
        raise UnavailableError(
            f"The attention of {heads} heads over {tokens:,} tokens needs {size / 1e6:,.0f} MB, but this "
            f"server allows {MAX_ATTENTION_BYTES / 1e6:,.0f} MB. Use a shorter text or, if possible, "
            "one head."
        )


MAX_TRACE_BYTES = 500_000_000
"""Maximum total size in bytes of the traces of a list of texts, in a view file or on a server."""


def check_trace_bytes(sizes: Sequence[int]) -> None:
    """Raise an error if the traces of a list of texts are too large. One or two traces are always allowed.

    Args:
        sizes: size of each trace in bytes.

    Raises:
        TextError: the total size exceeds the limit.
    """
    limit = task_limit(MAX_TRACE_BYTES)
    if len(sizes) > 2 and sum(sizes) > limit:
        raise TextError(
            f"The traces of the first {len(sizes)} texts need more than {limit / 1e6:,.0f} MB of memory. Use "
            "fewer or shorter texts."
        )
