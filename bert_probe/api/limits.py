"""Limits on the size, number and duration of requests and responses."""

from typing import Final

MAX_BODY_BYTES: Final = 5_000_000
"""Maximum size of a body in bytes; the same limit applies to a file that is uploaded to a page."""
MAX_BODY_SECONDS: Final = 10.0
"""Time limit for receiving a body, in seconds. A request counts towards `MAX_REQUESTS` only after its body
has arrived.
"""
MAX_CLIENT_BYTES: Final = 40_000_000
"""Maximum total size of the bodies that are arriving from one client, in bytes."""
MAX_INCOMING_BYTES: Final = 160_000_000
"""Maximum total size of the bodies that are arriving from all clients, in bytes."""
MAX_TEXTS: Final = 100
"""Maximum number of texts that are compared with each other."""
MAX_SENTENCES: Final = 1_000
"""Maximum number of sentences, the same as on the pages. A table may compare each with all others."""
MAX_NAME_LENGTH: Final = 1_000
"""Maximum length of the name of a model, a revision or a file, in characters."""
MAX_CELLS: Final = 5_000_000
"""Maximum number of cells of a table; the command line writes larger tables to a file in parts."""
MAX_ANSWER_SECONDS: Final = 120.0
"""Time limit for an answer, in seconds. After this time, work that reports progress is cancelled. All other
work continues, although its client has received an error.
"""
MAX_REQUESTS: Final = 32
"""Maximum number of requests that are computed or queued; further requests are rejected with
`errors.BUSY`.
"""
