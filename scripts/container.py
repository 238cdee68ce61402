"""Run the steps of the Dockerfile on this machine, without a container engine: Linux, as root.

    .venv/bin/python scripts/container.py FOLDER

FOLDER must be new and outside /tmp. The script copies the running Python installation, which replaces the
base image, and the files that the Dockerfile copies. It installs the app into FOLDER/opt/bert-probe, and
starts the entry point as user 1000 with a read-only file system and an empty /tmp. Then it runs the health
check, opens pages, and checks that the app cannot write elsewhere. The script does not check the base image
itself.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PREFIX = "/opt/bert-probe"
"""Folder of the virtual environment in the image."""
START_SECONDS = 120.0

_ISOLATE = """
mount --make-rprivate /
mount -o remount,bind,ro /
mount -t tmpfs -o size=512m,mode=1777 tmpfs /tmp
cd /tmp
exec setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
"""Shell script that runs a command as the container would: read-only, an empty /tmp, without privileges."""


@dataclass(frozen=True)
class Image:
    """The instructions of a two-stage Dockerfile that this script runs.

    Attributes:
        files: source and destination of each file or folder that the first stage copies from the project.
        build: shell commands of the first stage.
        variables: environment variables of the last stage.
        entry_point, health_check: commands as tuples of arguments.
    """

    files: tuple[tuple[str, str], ...]
    build: tuple[str, ...]
    variables: dict[str, str]
    entry_point: tuple[str, ...]
    health_check: tuple[str, ...]


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile, each with its arguments on a single line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [
        (name, arguments.strip())
        for name, _, arguments in (line.partition(" ") for line in joined.splitlines())
    ]


def read_image(text: str) -> Image:
    """Return the instructions of a two-stage Dockerfile that this script runs.

    Args:
        text: content of the Dockerfile.
    """
    files: list[tuple[str, str]] = []
    build: list[str] = []
    variables: dict[str, str] = {}
    commands: dict[str, tuple[str, ...]] = {}
    stage = 0
    for name, arguments in instructions(text):
        if name == "FROM":
            stage += 1
        elif name == "COPY" and not arguments.startswith("--from"):
            *sources, target = arguments.split()
            files += [(source, target if len(sources) == 1 else source) for source in sources]
        elif name == "RUN" and stage == 1:
            build.append(arguments)
        elif name == "ENV":
            variables |= dict(part.split("=", 1) for part in shlex.split(arguments))
        elif name == "ENTRYPOINT":
            commands[name] = tuple(json.loads(arguments))
        elif name == "HEALTHCHECK":
            commands[name] = tuple(json.loads(arguments.partition(" CMD ")[2]))
    return Image(tuple(files), tuple(build), variables, commands["ENTRYPOINT"], commands["HEALTHCHECK"])


def build(image: Image, folder: Path) -> None:
    """Copy Python and the project's files into a folder, and run the commands of the first stage there."""
    source = folder / "source"
    source.mkdir(parents=True)
    # User 1000 may be unable to read the folder of the running Python.
    ignored = shutil.ignore_patterns("site-packages", "__pycache__", "test")
    shutil.copytree(sys.base_prefix, folder / "python", symlinks=True, ignore=ignored)
    environment = os.environ | {"PATH": f"{folder / 'python' / 'bin'}:{os.environ['PATH']}"}
    for name, target in image.files:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / target)
    for command in image.build:
        subprocess.run(
            ["sh", "-ec", command.replace(PREFIX, f"{folder}{PREFIX}")],
            cwd=source,
            env=environment,
            check=True,
        )
    folder.chmod(0o755)


def start(image: Image, folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the entry point as the container does: as user 1000, on a read-only file system."""
    variables = {name: value.replace(PREFIX, f"{folder}{PREFIX}") for name, value in image.variables.items()}
    variables["PATH"] = variables["PATH"].replace("$PATH", os.environ["PATH"])
    variables["LD_LIBRARY_PATH"] = str(folder / "python" / "lib")  # libraries of the copied Python
    command = ["unshare", "--mount", "sh", "-ec", _ISOLATE, "sh", *image.entry_point]
    return subprocess.Popen(command, env=variables | {"PORT": str(port)}, cwd="/")


def check(image: Image, folder: Path) -> None:
    """Start the app, and check that it responds, runs as user 1000, and cannot write outside /tmp."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start(image, folder, port)
    try:
        begun = time.monotonic()
        while not _is_healthy(image, folder, port):
            if process.poll() is not None or time.monotonic() - begun > START_SECONDS:
                sys.exit(f"The app did not become healthy within {START_SECONDS:.0f} seconds.")
            time.sleep(0.5)
        print(f"healthy after {time.monotonic() - begun:.1f} s")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for path in ("/", "/attention", "/robots.txt"):
            with opener.open(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
                print(f"GET {path}: {reply.status}")
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        mounts = Path(f"/proc/{process.pid}/mounts").read_text(encoding="utf-8").splitlines()
        uid = re.findall(r"^Uid:\s+(\d+)", status, re.MULTILINE)[0]
        root = next(line.split()[3] for line in mounts if line.split()[1] == "/").split(",")
        print(f"user {uid}; / is {'read-only' if 'ro' in root else 'WRITABLE'}")
        if uid != "1000" or "ro" not in root:
            sys.exit("The app does not run as user 1000 with a read-only file system.")
    finally:
        process.terminate()
        print(f"ended with status {process.wait(timeout=30)}")


def _is_healthy(image: Image, folder: Path, port: int) -> bool:
    program = f"{folder}{PREFIX}/bin/{image.health_check[0]}"
    command = [program, *image.health_check[1:]]
    done = subprocess.run(command, env={"PORT": str(port)}, capture_output=True, check=False)
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    """Build and check the image in a folder, and return the exit status."""
    if len(arguments) != 1 or Path(arguments[0]).exists():
        print(__doc__, file=sys.stderr)
        return 2
    image = read_image((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    folder = Path(arguments[0]).absolute()
    build(image, folder)
    size = sum(path.lstat().st_size for path in Path(f"{folder}{PREFIX}").rglob("*"))
    print(f"{PREFIX}: {size / 1e9:.2f} GB")
    check(image, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
