"""The entries of the gallery. All texts are in the public domain."""

from __future__ import annotations

from typing import Final

from website.gallery import GalleryEntry

_ALICE: Final = "Alice was beginning to get very tired of sitting by her sister on the bank."
_BEST: Final = "It was the best of times, it was the worst of times."
_ROSE: Final = "Rose is a rose is a rose is a rose."
_HAPPY: Final = "Happy families are all alike; every unhappy family is unhappy in its own way."
_TRUTH: Final = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must "
    "be in want "
    "of a wife."
)
_WHALE: Final = (
    "Call me Ishmael. Some years ago I thought I would sail about a little and see the watery part "
    "of the world."
)
_BANK: Final = "The boat drifted slowly towards the bank of the river."
_MONEY: Final = "She went to the bank to ask for a loan of money."
_OPENINGS: Final = (
    _TRUTH,
    _BEST,
    _WHALE,
    _HAPPY,
    _ALICE,
    "The Nellie, a cruising yawl, swung to her anchor without a flutter of the sails, and was at rest.",
    "No one would have believed that this world was being watched keenly and closely by "
    "intelligences from Mars.",
    "There was no possibility of taking a walk that day, for the rain was so penetrating.",
    "Marley was dead, to begin with; there is no doubt whatever about that.",
    "You will rejoice to hear that no disaster has accompanied the commencement of my enterprise.",
    "To Sherlock Holmes she is always the woman; in his eyes she eclipses the whole of her sex.",
    "The Mole had been working very hard all the morning, spring-cleaning his little home.",
)


def _load(text: str, pair: str = "") -> str:
    lines = [f"model = bert_probe.load()\ntrace = model.trace({text!r})"]
    if pair:
        lines = [f"model = bert_probe.load()\na = model.trace({text!r})\nb = model.trace({pair!r})"]
    return "".join(lines)


ENTRIES: Final = (
    GalleryEntry(
        "all-heads",
        "All 72 heads at once",
        "Each thumbnail is the attention of one head. A diagonal means attention to a neighbor, a column "
        "attention to a single token.",
        "Herman Melville, Moby-Dick, 1851 (shortened)",
        ("attention", _WHALE, "--picture", "model"),
        _load(_WHALE),
        "trace.model_view()",
    ),
    GalleryEntry(
        "previous-token",
        "A head that looks at the previous token",
        "Head 3 of layer 1 puts more than nine tenths of its attention on the token before.",
        "Charles Dickens, A Tale of Two Cities, 1859",
        ("attention", _BEST, "--layer", "1", "--head", "3"),
        _load(_BEST),
        "trace.head_view(layer=0, heads=2)",
    ),
    GalleryEntry(
        "repeated-words",
        "A head that finds repeated words",
        "Head 10 of layer 3 connects each rose with the other roses.",
        "Gertrude Stein, Sacred Emily, 1913",
        ("attention", _ROSE, "--layer", "3", "--head", "10"),
        _load(_ROSE),
        "trace.head_view(layer=2, heads=9)",
    ),
    GalleryEntry(
        "pronoun",
        "Which heads connect a pronoun with its name?",
        "The attention from “her” to “Alice” in every head of every layer; the largest weights connect them.",
        "Lewis Carroll, Alice’s Adventures in Wonderland, 1865",
        ("find", _ALICE, "--query", "her", "--key", "Alice"),
        _load(_ALICE),
        "bert_probe.FindHeads([('her', 'Alice')]).of(trace).show()",
    ),
    GalleryEntry(
        "steps",
        "One attention weight, step by step",
        "How “her” attends to “Alice” in head 5 of layer 6: query and key, their products, scores, "
        "weights and values.",
        "Lewis Carroll, Alice’s Adventures in Wonderland, 1865",
        ("steps", _ALICE, "--layer", "6", "--head", "5", "--query", "her"),
        _load(_ALICE),
        "bert_probe.AttentionSteps(layer=5, head=4, query='her').of(trace).show()",
    ),
    GalleryEntry(
        "head-profiles",
        "What each head does",
        "Thirteen measures of every head, such as its entropy and the shares of its attention on neighbors, "
        "separators and punctuation.",
        "Jane Austen, Pride and Prejudice, 1813",
        ("heads", _TRUTH),
        _load(_TRUTH),
        "bert_probe.Heads().of(trace).show()",
    ),
    GalleryEntry(
        "rollout",
        "Where information comes from, through all layers",
        "Attention rollout multiplies the attention of all layers, with half of the weight on the "
        "residual connection.",
        "Leo Tolstoy, Anna Karenina, 1878, translated by Constance Garnett, 1901",
        ("rollout", _HAPPY),
        _load(_HAPPY),
        "bert_probe.Attention(measure='rollout').of(trace).show()",
    ),
    GalleryEntry(
        "ablation",
        "What changes if a head is switched off",
        "Each cell shows how much the vectors of the last layer change if that head is switched off.",
        "Leo Tolstoy, Anna Karenina, 1878, translated by Constance Garnett, 1901",
        ("ablate-each", _HAPPY),
        _load(_HAPPY),
        "bert_probe.HeadAblationSweep().of(trace).show()",
    ),
    GalleryEntry(
        "two-banks",
        "Two meanings of bank",
        "The cosine of each pair of tokens of two sentences: the two “bank” tokens are most similar, "
        "although their meanings differ.",
        "Written for this page, in the public domain",
        ("similarity", _BANK, _MONEY, "--layer", "6"),
        _load(_BANK, _MONEY),
        "bert_probe.Similarity(layer=6).of(a, b).show()",
    ),
    GalleryEntry(
        "token-map",
        "Tokens move through the layers",
        "The tokens of two sentences on one plane. Play the layers, and follow the two “bank” tokens.",
        "Written for this page, in the public domain",
        ("map", _BANK, _MONEY),
        _load(_BANK, _MONEY),
        "bert_probe.TokenMap().of(a, b).show()",
    ),
    GalleryEntry(
        "word-in-context",
        "One word in four sentences",
        "The vectors of “bank” are more similar in sentences with the same meaning (0.87, 0.89) than "
        "in others (at most 0.76).",
        "Written for this page, in the public domain",
        (
            "context",
            *("--word", "bank", "--layer", "6"),
            *("--in", _BANK, "--in", "We sat on the grassy bank of the stream and fished."),
            *("--in", _MONEY, "--in", "The bank raised the interest on my savings account."),
        ),
        "model = bert_probe.load()\n"
        "traces = model.traces([\n"
        f"    {_BANK!r},\n    'We sat on the grassy bank of the stream and fished.',\n"
        f"    {_MONEY!r},\n    'The bank raised the interest on my savings account.',\n])",
        "bert_probe.WordInContext(('bank',), layer=6).of(traces).show()",
    ),
    GalleryEntry(
        "changed-word",
        "One word changes: which heads notice?",
        "How much the attention of every head and every vector change between two sentences that differ in "
        "one word.",
        "Charles Dickens, A Tale of Two Cities, 1859, and a variant",
        ("compare", _BEST, "It was the best of times, it was the age of times."),
        _load(_BEST, "It was the best of times, it was the age of times."),
        "bert_probe.MinimalPair().of(a, b).show()",
    ),
    GalleryEntry(
        "why-similar",
        "Why are two sentences similar?",
        "Each cell is the contribution of a pair of tokens. The cosine of the sentences is exactly the sum "
        "of all cells.",
        "Written for this page, in the public domain",
        (
            *("predict", "A ship left the harbor before dawn."),
            *("--pair", "The vessel sailed from the port early in the morning."),
        ),
        _load("A ship left the harbor before dawn.", "The vessel sailed from the port early in the morning."),
        "bert_probe.SentenceSimilarity().of(a, b).show()",
    ),
    GalleryEntry(
        "opening-lines",
        "Twelve opening lines compared",
        "The cosine of each pair of opening lines of novels and stories, in the order of a "
        "hierarchical clustering.",
        "Opening lines of works from 1813 to 1908, some shortened",
        ("sentences", "openings.txt", "--order", "tree"),
        "from pathlib import Path\n\n"
        "model = bert_probe.load()\n"
        "lines = Path('openings.txt').read_text(encoding='utf-8').splitlines()",
        "bert_probe.Sentences(order='tree').of(model, lines).show()",
        {"openings.txt": "\n".join(_OPENINGS) + "\n"},
    ),
    GalleryEntry(
        "positions",
        "What the model knows about positions",
        "The cosine of each pair of learned position embeddings: neighbors are similar, distant "
        "positions are not.",
        "No text: the weights of the model",
        ("positions", "--show", "cosines"),
        "model = bert_probe.load()",
        "bert_probe.Positions('cosines').of(model).show()",
    ),
)
