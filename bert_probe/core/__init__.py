"""Base classes of questions and results: fields, inputs, provenance, code snippets and output files."""
