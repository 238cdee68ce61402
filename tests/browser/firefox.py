"""Runs a distribution's Firefox with Playwright instead of Playwright's own build.

Playwright controls Firefox over WebDriver BiDi. The command that it sends to set the theme,
`emulation.setMediaFeaturesOverride`, is not available in released versions of Firefox. A proxy answers this
command without an effect and forwards all others, so tests cannot select a theme in Firefox.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Playwright
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

UNKNOWN = "emulation.setMediaFeaturesOverride"
LISTENS = re.compile(r"(?<=WebDriver BiDi listening on )ws://[\d.:]+")


def installed() -> str | None:
    """Return the path of Firefox, or None if it is not installed."""
    return os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")


def launch(playwright: Playwright, path: str, folder: Path) -> Browser:
    """Start Firefox.

    Args:
        folder: folder in which the start script is written.
    """
    started = folder / "firefox"
    started.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    started.chmod(0o755)
    return playwright.firefox.launch(
        channel="moz-firefox",
        executable_path=started,
        env={**os.environ, "FIREFOX": path},
        proxy={"server": "http://127.0.0.1:9"},
    )


async def between(address: str, driver: ServerConnection) -> None:
    """Forward messages in both directions until one side closes."""
    assert driver.request is not None
    async with connect(address + driver.request.path, max_size=None) as browser:

        async def on() -> None:
            async for message in driver:
                command = json.loads(message)
                if command["method"] == UNKNOWN:
                    await driver.send(json.dumps({"type": "success", "id": command["id"], "result": {}}))
                else:
                    await browser.send(message)

        async def back() -> None:
            async for message in browser:
                await driver.send(message)

        ways = [asyncio.create_task(way()) for way in (on, back)]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)


async def main() -> int:
    """Run Firefox, forward its log with the address of the proxy, and return its exit status."""
    firefox = await asyncio.create_subprocess_exec(
        os.environ["FIREFOX"], *sys.argv[1:], stderr=asyncio.subprocess.PIPE, limit=2**20
    )
    assert firefox.stderr is not None
    while line := (await firefox.stderr.readline()).decode(errors="replace"):
        match = LISTENS.search(line)
        if match:
            address = match[0]
            server = await serve(partial(between, address), "127.0.0.1", 0, max_size=None)
            port = server.sockets[0].getsockname()[1]
            line = line.replace(address, f"ws://127.0.0.1:{port}")
        print(line, end="", file=sys.stderr, flush=True)
    return await firefox.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
