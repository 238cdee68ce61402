"""Import slow modules in a background thread while the browser loads the first page."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache

from streamlit import delta_generator

from bert_probe.core.extras import long_lived_imports


def start() -> None:
    """Start the imports in a background thread. Later calls in the same process have no effect."""
    # Skip Streamlit's check for an interactive Python session: it scans all modules and takes half a second.
    delta_generator._use_warning_has_been_displayed = True
    _imports()


def wait() -> None:
    """Wait until the imports are done, and raise the error of a failed import."""
    _imports().result()


def is_done() -> bool:
    """Return whether the imports are done."""
    return _imports().done()


def _imports() -> Future[None]:
    """Return the future of the imports, which start with the first call.

    Only one thread imports: `transformers` can fail if several threads import its modules at once.
    """
    with _lock:  # `cache` alone would call the function once for each thread that calls it before it returns
        return _start_imports()


_lock = threading.Lock()


@cache
def _start_imports() -> Future[None]:
    future: Future[None] = Future()

    def work() -> None:
        try:
            # Import the modules that open a model, and the modules of the Overview page.
            with long_lived_imports(), _shorter_switch_interval():
                import bert_probe.model.loading
                import bert_probe.ui.overview  # noqa: F401
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    # Use a daemon thread, so that Ctrl+C does not wait for the imports.
    threading.Thread(target=work, name="imports", daemon=True).start()
    return future


@contextmanager
def _shorter_switch_interval() -> Iterator[None]:
    """Make Python switch threads ten times as often, so that imports do not delay requests."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(interval / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
