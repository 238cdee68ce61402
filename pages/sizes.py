"""The Sizes page: sizes of models from their configs."""

from bert_probe.ui import sizes

sizes.render()
