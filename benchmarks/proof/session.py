"""A client that uses the app's WebSocket without a browser."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import pandas as pd
import pyarrow
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from bert_probe.server.asgi import FRONT_PAGE


class Session:
    """A session of the app over a WebSocket, like that of a browser tab.

    Args:
        port: Port of the app on 127.0.0.1.
        address: IP address of the user, as a proxy would forward it; "" without a proxy.

    Attributes:
        messages: Messages from the last run of the page's script.
    """

    def __init__(self, port: int, address: str = "") -> None:
        self.messages: list[ForwardMsg] = []
        self._socket = connect(
            f"ws://127.0.0.1:{port}/_stcore/stream",
            origin=Origin(f"http://127.0.0.1:{port}"),
            subprotocols=[Subprotocol("streamlit")],
            max_size=None,
            additional_headers={"X-Forwarded-For": address} if address else None,
            proxy=None,
            open_timeout=60,
            close_timeout=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def break_off(self) -> None:
        """Abort the connection, as if the browser had been killed."""
        self._socket.socket.shutdown(socket.SHUT_RDWR)
        self._socket.socket.close()

    def ask(self, page: str, **address: str) -> None:
        """Request a page with URL parameters, without waiting for the response."""
        message = BackMsg()
        message.rerun_script.query_string = urlencode(address)
        message.rerun_script.page_name = "" if page == FRONT_PAGE else page
        self._socket.send(message.SerializeToString())

    def open(self, page: str, seconds: float = 60, **address: str) -> list[ForwardMsg]:
        """Open a page with URL parameters, and return its messages when its script and jobs have finished.

        Raises:
            TimeoutError: The page has not finished within `seconds`.
        """
        self.ask(page, **address)
        end = time.monotonic() + seconds
        self.messages = []
        while True:
            data = self._socket.recv(timeout=max(0.0, end - time.monotonic()), decode=False)
            message = ForwardMsg.FromString(data)
            kind = message.WhichOneof("type")
            if kind == "new_session":
                self.messages = []
            self.messages.append(message)
            if kind == "script_finished" and message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                return self.messages

    def elements(self) -> Iterator[Any]:
        """Yield the Streamlit elements that the last run of the page created."""
        for message in self.messages:
            if message.WhichOneof("type") == "delta" and message.delta.WhichOneof("type") == "new_element":
                yield message.delta.new_element

    def tables(self) -> list[pd.DataFrame]:
        """Return the tables that the last run of the page displayed."""
        return [
            pyarrow.ipc.open_stream(element.dataframe.arrow_data.data).read_pandas()
            for element in self.elements()
            if element.WhichOneof("type") == "dataframe"
        ]

    def raised(self) -> list[str]:
        """Return the type names of the exceptions that the last run of the page displayed."""
        return [
            element.exception.type for element in self.elements() if element.WhichOneof("type") == "exception"
        ]
