"""Overview: what of the text is most worth a look."""

from bert_probe.ui import blocks, overview, workbench

blocks.heading(
    "Overview",
    "What of your text is most worth a look: a sentence, a picture, and the way to the view behind it.",
)
study = workbench.study()
blocks.truncation_notice(study.a)
if study.b is not None:
    blocks.truncation_notice(study.b)
overview.draw(study)
