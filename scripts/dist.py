"""Build the distributions in dist/, check them, and test each of them in a new environment.

    .venv/bin/python scripts/dist.py [FOLDER]

FOLDER (default: a temporary folder) contains the environments, which are deleted at the end. The script
installs the wheel and the source distribution with the newest versions of their dependencies, runs a command
with each, and prints the sizes of the environments with and without extras.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ("build==1.6.1", "twine==7.0.0")
INSTALLATIONS = (("wheel", ""), ("wheel", "[app]"), ("wheel", "[all]"), ("sdist", "[model]"))
"""Distributions to install, each with its extras."""


def environment(folder: Path, *packages: str) -> Path:
    """Create a virtual environment with packages, and return the path of its `bin` folder."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    command = [folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*command, *packages], check=True)
    return folder / "bin"


def size(folder: Path) -> int:
    """Return the total size of the files in a folder, in bytes."""
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def build(folder: Path) -> dict[str, Path]:
    """Build the distributions in dist/, check their metadata, and return the paths of "wheel" and "sdist".

    Args:
        folder: temporary folder for the build tools.
    """
    programs, target = environment(folder / "tools", *TOOLS), ROOT / "dist"
    for name in ("dist", "build"):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    subprocess.run(
        [programs / "python", "-m", "build", "--outdir", target, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    subprocess.run([programs / "twine", "check", "--strict", wheel, sdist], check=True)
    return {"wheel": wheel, "sdist": sdist}


def try_out(programs: Path, folder: Path, has_model: bool) -> str:
    """Run the installed `bert-probe` in an empty folder, and return the output of `bert-probe --version`.

    Args:
        programs: `bin` folder of the environment.
        folder: folder in which the empty folder is created.
        has_model: whether the built-in model is installed, so that texts can be analyzed.
    """
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)

    def run(*command: str) -> str:
        program = programs / command[0]
        done = subprocess.run([program, *command[1:]], cwd=empty, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    if has_model:
        assert "boat" in run("bert-probe", "tokens", "a small boat")
        assert run("bert-probe", "attention", "a small boat", "--layer", "1")
    return run("bert-probe", "--version")


def main(arguments: list[str]) -> int:
    """Build and test the distributions, and return the exit status."""
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as name:
        folder = Path(name)
        files = build(folder)
        for kind, file in files.items():
            print(f"{kind}: {file.name}, {file.stat().st_size / 1e6:.1f} MB")
        for number, (kind, extras) in enumerate(INSTALLATIONS):
            place = folder / f"environment-{number}"
            programs = environment(place, f"{files[kind]}{extras}")
            version = try_out(programs, folder, has_model=bool(extras))
            count = len(list(place.glob("lib/python*/site-packages/*.dist-info")))
            print(f"{kind}{extras}: {version}; {count} packages, {size(place) / 1e9:.2f} GB")
            shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
