"""What is taken and sent at most."""

from typing import Final

MAX_BODY_BYTES: Final = 5_000_000
"""Of a body, as of a file that is given to a page."""
MAX_BODY_SECONDS: Final = 10.0
"""In which a body must arrive; it takes no place among `AT_ONCE` until then."""
MAX_CLIENT_BYTES: Final = 40_000_000
"""Of the bodies that are arriving from one client."""
MAX_INCOMING_BYTES: Final = 160_000_000
"""Of the bodies that are arriving from all clients."""
MAX_TEXTS: Final = 100
"""That are compared with each other."""
MAX_SENTENCES: Final = 1_000
"""As on the pages: the table may be of all with all."""
MAX_NAME_LENGTH: Final = 1_000
"""Characters of the name of a model, a revision or a file."""
MAX_CELLS: Final = 5_000_000
"""Of a table: what is larger belongs into a file, which the command line writes part by part."""
MAX_ANSWER_SECONDS: Final = 120.0
"""That an answer may take; work that tells how far it is ends then, other work is no longer waited for."""
MAX_REQUESTS: Final = 32
"""Requests that are being answered, or wait for that; more are told to come again."""
