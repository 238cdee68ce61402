"""The Tokens page: how the tokenizer splits the text."""

from bert_probe.ui import tokens

tokens.render()
