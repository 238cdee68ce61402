"""The analyses: each module defines a question, its result, and the table of the result."""
