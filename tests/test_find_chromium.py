"""Test how `make test` finds or installs a browser, also if apt-get is busy, and the error messages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "browser" / "find_chromium.sh"
MISSING = "No Chromium here, and "
# A stub of apt-get that fails for the first calls. Then, `install` creates a browser.
APT_GET = """#!/bin/bash
echo "$@" >>"$HERE/calls"
if [ "$1" = update ]; then
  read -r left <"$HERE/busy"
  echo $((left - 1)) >"$HERE/busy"
  [ "$left" -le 0 ]
  exit
fi
cp "$HERE/id" "$HERE/chromium"
"""


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a folder that replaces the system: without a browser, apt-get or root privileges."""
    put(tmp_path, "id", "echo 1000")
    put(tmp_path, "sudo", "exit 1")
    put(tmp_path, "sleep", 'echo sleep >>"$HERE/calls"')
    for tool in ("env", "cp", "bash"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    return tmp_path


def put(folder: Path, name: str, content: str) -> None:
    path = folder / name
    path.write_text(content if content.startswith("#!") else f"#!/bin/bash\n{content}\n")
    path.chmod(0o755)


def search(system: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(SCRIPT)],
        env={"PATH": str(system), "HERE": str(system), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_installed_browser_is_found(system: Path, name: str) -> None:
    put(system, name, "exit 0")
    done = search(system, CI="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("root", "apt", "chromium", "why"),
    [
        (True, None, "", "there is no apt-get"),
        (False, 0, "", "installing one needs root"),
        (True, 99, "", "apt-get could not install one"),
        (True, 0, "/no/such/chrome", "/no/such/chrome, which CHROMIUM names, cannot be run"),
    ],
)
def test_missing_browser_is_reported_and_fails_in_ci(
    system: Path, root: bool, apt: int | None, chromium: str, why: str
) -> None:
    if root:
        put(system, "id", "echo 0")
    if apt is not None:
        put(system, "apt-get", APT_GET)
        (system / "busy").write_text(f"{apt}\n")
    person, ci = search(system, CHROMIUM=chromium), search(system, CHROMIUM=chromium, CI="true")
    assert person.returncode == 0
    assert f"{MISSING}{why}" in person.stdout
    assert "are skipped" in person.stdout
    assert ci.returncode == 1
    assert f"{MISSING}{why}" in ci.stderr


def test_busy_apt_get_is_retried(system: Path) -> None:
    put(system, "id", "echo 0")
    put(system, "apt-get", APT_GET)
    (system / "busy").write_text("2\n")
    done = search(system, CI="true")
    assert (done.returncode, done.stdout) == (0, "Installing Chromium for the tests in a browser\n")
    calls = (system / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["update", "sleep", "update", "sleep", "update", "-o"]
    assert "DPkg::Lock::Timeout=" in calls[-1]
