"""The Report page: edit a report draft, and create the report."""

from bert_probe.ui import report

report.render()
