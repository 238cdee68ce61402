"""Builds the static site: landing page, playground, gallery and documentation (`python -m website`)."""
