"""Answers leave at once, on every connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from bert_probe.server import asgi
from tests.helpers.server import finish


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket as Streamlit makes it, with no protocol named."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def test_connections_do_not_wait_for_one_another_s_acknowledgement(listening: socket.socket) -> None:
    async def started() -> None:
        async with asgi.lifespan(None):
            pass

    finish(started())
    with socket.create_connection(listening.getsockname()), listening.accept()[0] as connection:
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_every_way_to_start_does_it() -> None:
    assert asgi.parts()["lifespan"] is asgi.lifespan
