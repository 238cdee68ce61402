"""The page Report: the draft of a report."""

from bert_probe.ui import report

report.render()
