"""The sockets that the server listens at."""

from __future__ import annotations

import os
import socket

import psutil


def send_at_once() -> None:
    """Let no answer on a connection to come wait until the browser has acknowledged the one before.

    Streamlit binds its socket without naming the protocol, and asyncio then leaves Nagle's algorithm on. What
    is written in two parts, as nearly every answer and every change of a page is, took up to 40 ms by that.
    Connections take the setting over from the socket that they come in at.
    """
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.fd >= 0:
            with socket.socket(fileno=os.dup(connection.fd)) as listening:
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
