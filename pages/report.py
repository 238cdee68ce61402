"""The page Report: edit the draft of a report, and create the report."""

from bert_probe.ui import report

report.render()
