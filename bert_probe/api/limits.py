"""Limits of requests and responses."""

from typing import Final

MAX_BODY_BYTES: Final = 5_000_000
"""Maximum size of a body; the same limit applies to a file that is uploaded to a page."""
MAX_BODY_SECONDS: Final = 10.0
"""Time limit for receiving a body. A request counts towards `MAX_REQUESTS` only after its body
has arrived.
"""
MAX_CLIENT_BYTES: Final = 40_000_000
"""Maximum total size of the bodies that are arriving from one client."""
MAX_INCOMING_BYTES: Final = 160_000_000
"""Maximum total size of the bodies that are arriving from all clients."""
MAX_TEXTS: Final = 100
"""Maximum number of texts that are compared with each other."""
MAX_SENTENCES: Final = 1_000
"""Maximum number of sentences, as on the pages: a table may compare each sentence with all others."""
MAX_NAME_LENGTH: Final = 1_000
"""Maximum length of the name of a model, a revision or a file, in characters."""
MAX_CELLS: Final = 5_000_000
"""Maximum number of cells of a table; the command line writes larger tables to a file in parts."""
MAX_ANSWER_SECONDS: Final = 120.0
"""Time limit for an answer. Then work that reports progress is cancelled; all other work continues, although
its client has received an error.
"""
MAX_REQUESTS: Final = 32
"""Maximum number of requests that are computed or queued; further requests are rejected with
`errors.BUSY`.
"""
