"""Tokens: how the text becomes pieces of the vocabulary."""

import pandas as pd
import streamlit as st

from bert_probe.analyses.vocabulary.tokens import Tokens
from bert_probe.ui import blocks, padding, workbench
from bert_probe.ui.export import export
from bert_probe.views.text import shown

blocks.heading(
    "Tokens",
    "A model reads pieces, not words: tokens. Its tokenizer takes them from a fixed vocabulary and splits "
    "other words.",
)
study = workbench.study()
for letter, trace in (("A", study.a), ("B", study.b)):
    if trace is None:
        continue
    blocks.truncation_notice(trace)
    title = "Sentences A and B, one input" if trace.encoding.pair is not None else f"Sentence {letter}"
    with st.container(border=True):
        st.markdown(f"**{title if study.b or trace.encoding.pair else 'Your text'}**")
        blocks.token_strip(trace, key=f"strip_{letter}", label=title)

trace = workbench.chosen_text(study)
found = Tokens().of(trace)
split = found.split_words

with st.container(horizontal=True, gap="large"):
    st.metric("Tokens", f"{len(trace.tokens):,}", help="Pieces the model reads, special tokens included.")
    st.metric(
        "Words", f"{len(found.words):,}", help="Words and punctuation marks as the tokenizer separates them."
    )
    st.metric("Split words", f"{len(split):,}", help="Words that are not in the vocabulary as a whole.")
    st.metric(
        "Special tokens",
        f"{found.specials:,}",
        help="Added by the tokenizer: [CLS] opens the input, [SEP] closes each text. "
        "Other models write <s> and </s>.",
    )
    if found.length_used is not None:
        st.metric(
            "Length used",
            f"{found.length_used:.0%}",
            help=f"{len(trace.tokens):,} of the {trace.encoding.max_tokens:,} tokens that this model "
            "accepts.",
        )

if split:
    st.header("Split words", anchor=False)
    st.dataframe(
        pd.DataFrame(
            {
                "word": [word.text for word in split],
                "pieces": [[shown(trace.tokens[i].display) for i in word.positions] for word in split],
                "positions": [", ".join(map(str, word.positions)) for word in split],
            }
        ),
        hide_index=True,
        width="stretch",
        column_config={"pieces": st.column_config.ListColumn("pieces", width="large")},
        alt="Words that were split, and their pieces",
    )
else:
    st.caption("No word is split: the vocabulary holds each of them as a whole.")

table = found.table()
with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
    st.header("Every token", anchor=False)
    export(found, "tokens")
st.dataframe(
    table,
    hide_index=True,
    width="stretch",
    placeholder="–",
    height=min(38 + 35 * len(table), 640),
    column_config={
        "position": st.column_config.NumberColumn("position", help="Place in the model's input, from 0."),
        "token": st.column_config.TextColumn(
            "token", help="The entry of the vocabulary. ## marks a piece that continues a word."
        ),
        "id": st.column_config.NumberColumn("id", help="Its row in the vocabulary.", format="%d"),
        "segment": st.column_config.NumberColumn("segment", help="0 for the first text, 1 for the second."),
        "word": st.column_config.NumberColumn("word", help="Number of the word in its text, from 0."),
        "start": st.column_config.NumberColumn("start", help="First character in the text, from 0."),
        "end": st.column_config.NumberColumn("end", help="The character after its last one."),
        "special": st.column_config.CheckboxColumn("special", help="Added by the tokenizer."),
    },
    alt="All tokens with id, segment, word and place in the text",
)

padding.in_one_batch(study)
