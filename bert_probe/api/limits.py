"""Limits of requests and responses."""

from typing import Final

MAX_BODY_BYTES: Final = 5_000_000
"""Size of a body, the same as that of a file that is uploaded to a page."""
MAX_BODY_SECONDS: Final = 10.0
"""Time in which a body must arrive; until then it does not count as one of `MAX_REQUESTS`."""
MAX_CLIENT_BYTES: Final = 40_000_000
"""Total size of the bodies that are arriving from one client."""
MAX_INCOMING_BYTES: Final = 160_000_000
"""Total size of the bodies that are arriving from all clients."""
MAX_TEXTS: Final = 100
"""Number of texts that are compared with each other."""
MAX_SENTENCES: Final = 1_000
"""Number of sentences, the same as on the pages: a table may compare each sentence with all others."""
MAX_NAME_LENGTH: Final = 1_000
"""Characters in the name of a model, a revision or a file."""
MAX_CELLS: Final = 5_000_000
"""Cells of a table; the command line writes larger ones to a file in parts."""
MAX_ANSWER_SECONDS: Final = 120.0
"""Time for an answer. Then work that reports progress is cancelled; other work runs on without a client."""
MAX_REQUESTS: Final = 32
"""Number of requests that are computed or queued at once; further ones are refused with `errors.BUSY`."""
