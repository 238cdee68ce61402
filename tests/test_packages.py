"""Tests of scripts/packages.py: uv follows pip's configuration, and pip is the fallback if uv fails."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def packages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages", ROOT / "scripts" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stub(folder: Path, name: str, source: str) -> None:
    """Write a stub module that `python -m NAME` runs instead of the installed one."""
    (folder / f"{name}.py").write_text(f"import sys\narguments = sys.argv[1:]\n{source}\n", encoding="utf-8")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace pip and uv by stubs that always succeed, and return the file to which they log arguments."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "log"
    for name in ("pip", "uv"):
        stub(tmp_path, name, f"print({name!r}, *arguments, file=open({str(path)!r}, 'a'))")
    return path


def calls(log: Path) -> list[str]:
    """Return the program and the command of every logged call."""
    return [
        "config" if "config" in line else "get uv" if "uv==" in line else line.partition(" ")[0]
        for line in log.read_text(encoding="utf-8").splitlines()
    ]


def test_pip_options_environment_overrides_command_overrides_global(packages: ModuleType) -> None:
    lines = [
        "global.index-url='https://global.example/simple'",
        "global.timeout='60'",
        "global.cert='/ca.pem'",
        "install.index-url='https://install.example/simple'",
        "install.timeout='90'",
        "freeze.timeout='1'",
        ":env:.timeout='180'",
    ]
    assert packages.pip_options(lines) == {
        "index-url": "https://install.example/simple",
        "timeout": "180",
        "cert": "/ca.pem",
    }


def test_uv_environment_passes_indexes_links_and_certificates(packages: ModuleType) -> None:
    options = {
        "index-url": "https://mirror.example/simple",
        "extra-index-url": "https://a.example\nhttps://b.example",
        "find-links": "/wheels /more",
        "constraint": "/caps.txt",
        "trusted-host": "mirror.example",
        "cert": "/ca.pem",
        "default-timeout": "180",
        "disable-pip-version-check": "1",
    }
    assert packages.uv_environment(options) == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://a.example https://b.example",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_CONSTRAINT": "/caps.txt",
        "UV_INSECURE_HOST": "mirror.example",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_HTTP_TIMEOUT": "180",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_uv_environment_unknown_option_returns_none(packages: ModuleType) -> None:
    assert packages.uv_environment({"index-url": "https://mirror.example", "only-binary": ":all:"}) is None


def test_install_prefers_uv(packages: ModuleType, log: Path) -> None:
    assert packages.main(["install", "-r", "requirements.txt"]) == 0
    assert calls(log) == ["config", "get uv", "uv"]
    assert log.read_text(encoding="utf-8").endswith(
        f"uv pip install --python {sys.executable} -r requirements.txt\n"
    )


def test_install_follows_constraints_of_pip_and_its_own(
    packages: ModuleType, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CONSTRAINT", "/a.txt /b.txt")
    assert packages.main(["install", "-c", "constraints.txt"]) == 0
    command = log.read_text(encoding="utf-8").splitlines()[-1]
    assert command.endswith(" -c constraints.txt --constraint /a.txt --constraint /b.txt")


def test_install_falls_back_to_pip_when_uv_fails(packages: ModuleType, log: Path) -> None:
    stub(log.parent, "uv", "sys.exit(2)")
    assert packages.main(["install", "-r", "requirements.txt"]) == 0
    assert calls(log) == ["config", "get uv", "pip"]


def test_install_falls_back_to_pip_without_uv(packages: ModuleType, log: Path) -> None:
    write = f"print('pip', *arguments, file=open({str(log)!r}, 'a'))"
    stub(log.parent, "pip", f"{write}\nsys.exit(any(word.startswith('uv==') for word in arguments))")
    assert packages.main(["install", "-r", "requirements.txt"]) == 0
    assert calls(log) == ["config", "get uv", "pip"]


def test_install_returns_status_of_pip_when_both_fail(packages: ModuleType, log: Path) -> None:
    stub(log.parent, "uv", "sys.exit(2)")
    stub(log.parent, "pip", "sys.exit(3 if '-r' in arguments else 0)")
    assert packages.main(["install", "-r", "requirements.txt"]) == 3


def test_floors_are_the_oldest_versions_in_a_new_environment(packages: ModuleType, log: Path) -> None:
    assert packages.main(["floors", "folder"]) == 0
    assert calls(log) == ["config", "get uv", "uv", "uv"]
    create, install = log.read_text(encoding="utf-8").splitlines()[2:]
    assert create == f"uv venv --quiet --clear --python {sys.executable} folder"
    assert install.startswith("uv pip install --quiet --python folder --resolution lowest-direct -e .[all] ")
    assert {Requirement(line).name for line in install.split()[10:]} == set(packages.TEST_PACKAGES)


def test_floors_without_uv_are_refused(
    packages: ModuleType, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub(log.parent, "pip", "sys.exit(1)")
    assert packages.main(["floors", "folder"]) == 1
    assert capsys.readouterr().err == (
        "uv is needed to find the oldest versions, and could not be installed.\n"
    )


def test_unknown_command_is_refused(packages: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert packages.main(["remove"]) == 2
    assert "scripts/packages.py install" in capsys.readouterr().err


def test_constraints_agree_with_the_pinned_requirements() -> None:
    pins = {}
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
            if "==" in line:
                package, _, version = line.partition("==")
                pins[package] = version
    constraints: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]:
        requirement = Requirement(line)
        constraints.setdefault(requirement.name, set()).add(re.sub("^==", "", str(requirement.specifier)))
    assert pins.pop("torch")
    assert {package: constraints[package] for package in pins} == {
        package: {version} for package, version in pins.items()
    }, "Run make lock."
