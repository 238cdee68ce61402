"""Functions that install BERT Probe like a user: from a wheel, without access to the repository."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Files that are not copied to the folder in which the wheel is built. If an earlier build were copied,
# the wheel could contain a file that the current build omits.
_LEFT_OUT = (".git", ".venv", ".*cache", "__pycache__", "*.egg-info", "build", "dist", "docs", "tests")


# Streamlit settings of another project in the folder from which the app is started.
_FOREIGN = """
[server]
address = "0.0.0.0"
allowedHosts = ["*"]
enableCORS = false
enableXsrfProtection = false
corsAllowedOrigins = ["https://example.org"]
enableStaticServing = true
baseUrlPath = "elsewhere"
fileWatcherType = "poll"
[client]
showErrorDetails = "full"
[theme.light]
primaryColor = "#FF0000"
"""


@dataclass(frozen=True)
class Installed:
    """An environment in which BERT Probe is installed, and an empty working folder.

    The dependencies come from the environment that runs the tests. An editable install of BERT Probe in that
    environment has no effect here: Python reads the .pth file of the install only in that environment.
    """

    environment: Path
    folder: Path

    def command(self, name: str) -> str:
        """Return the path of a program in the environment, such as "python"."""
        return str(self.environment / "bin" / name)

    def variables(self) -> dict[str, str]:
        """Return environment variables without those that refer to the repository or the user's settings."""
        leading = ("PYTHON", "STREAMLIT")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(leading)}
        return inherited | {"HOME": str(self.folder), "HF_HUB_OFFLINE": "1"}

    def run(self, *command: str) -> str:
        """Run a program of the environment, assert success, and return its standard output."""
        program, *arguments = command
        done = subprocess.run(
            [self.command(program), *arguments],
            cwd=self.folder,
            env=self.variables(),
            capture_output=True,
            encoding="utf-8",
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build a wheel from a copy of the sources, and return its path; `folder` must be empty."""
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Installed:
    """Install a wheel into a new environment in `folder`, and create the empty working folder."""
    environment, empty = folder / "environment", folder / "empty"
    venv.create(environment, with_pip=False, symlinks=True)
    empty.mkdir()
    installed = Installed(environment, empty)
    _pip("--python", installed.command("python"), "install", "--no-deps", str(wheel))
    own = installed.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    site_folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    Path(own, "others.pth").write_text("".join(f"{path}\n" for path in site_folders), encoding="utf-8")
    return installed


@contextmanager
def foreign_settings(folder: Path) -> Iterator[None]:
    """Write Streamlit settings of another project into the folder from which the app is started."""
    path = folder / ".streamlit" / "config.toml"
    path.parent.mkdir()
    path.write_text(_FOREIGN, encoding="utf-8")
    yield
    path.unlink()
    path.parent.rmdir()


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        return int(free.getsockname()[1])


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run([*command, "--no-index"], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
