"""Test the Dockerfile and the files around it, without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import yaml

from bert_probe.cli.app import app
from bert_probe.server import access
from tests.helpers.scripts import load_script

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
container = load_script("container")
INSTRUCTIONS = container.instructions(TEXT)
IMAGE = container.read_image(TEXT)
LAST_STAGE = INSTRUCTIONS[max(number for number, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM") :]


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([program, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_app_runs_as_an_ordinary_user_with_a_health_check_on_its_port() -> None:
    names = [name for name, _ in LAST_STAGE]
    assert names[-1] == "ENTRYPOINT"
    user = dict(LAST_STAGE)["USER"]
    assert user.isdecimal()
    assert int(user) >= 1000
    assert names.index("USER") > names.index("RUN"), "the last RUN needs root"
    assert not {"ADD", "VOLUME", "CMD"} & {*names}
    assert dict(LAST_STAGE)["EXPOSE"] == IMAGE.variables["PORT"]
    assert "os.environ['PORT'] + '/healthz'" in IMAGE.health_check[-1]
    assert (IMAGE.variables["HOME"], IMAGE.variables["TMPDIR"], dict(LAST_STAGE)["WORKDIR"]) == ("/tmp",) * 3


def test_entry_point_is_a_valid_command_and_accepts_more_options() -> None:
    shell, option, command, program = IMAGE.entry_point
    assert (shell, option, program) == ("sh", "-c", "bert-probe")
    assert command.endswith('"$@"')
    arguments = shlex.split(command.replace('"$PORT"', "8501").replace(' "$@"', ""))
    assert arguments[:3] == ["exec", "bert-probe", "app"]
    context = click.Context(app)
    parsed, positional, _ = app.make_parser(context).parse_args([*arguments[3:], "--models", "/models/mine"])
    assert (parsed["public"], parsed["host"], parsed["models"], positional) == (
        True,
        "0.0.0.0",
        "/models/mine",
        [],
    )


def test_image_gets_the_files_that_the_package_needs_and_no_others() -> None:
    copied = {source for source, _ in IMAGE.files}
    assert all((ROOT / name).exists() for name in copied)
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    assert (allowed, "*" in patterns) == (copied, True)
    # The wheel contains the license, the description and top-level files, so they must be copied.
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    top = {name.partition("/")[0] for name in re.findall(r'"(\.streamlit/[^"]+|pages/[^"]+)"', setup)}
    assert {*top, "app.py", "README.md", "LICENSE", "pyproject.toml", "bert_probe"} <= copied


def test_compose_restricts_the_container() -> None:
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["bert-probe"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [path.partition(":")[0] for path in service["tmpfs"]] == [IMAGE.variables["TMPDIR"]]
    assert service["ports"] == ["127.0.0.1:8501:8501"], "other machines reach it only through a proxy"
    assert {"mem_limit", "pids_limit"} <= service.keys()
    variables = {option.envvar for option in app.params if isinstance(option.envvar, str)}
    assert service["environment"].keys() <= variables | {access.HOSTS_VARIABLE}


def test_header_of_a_space_names_the_port_and_the_kind() -> None:
    _, header, text = (ROOT / "deploy" / "space" / "README.md").read_text(encoding="utf-8").split("---\n")
    settings = yaml.safe_load(header)
    assert (settings["sdk"], settings["app_port"]) == ("docker", int(IMAGE.variables["PORT"]))
    assert settings["license"] == "mit"
    assert len(settings["short_description"]) <= 60
    assert text.strip()


def test_no_secret_and_no_copied_folder_of_the_machine_is_in_the_image() -> None:
    assert not re.search("password|secret|token", TEXT, re.IGNORECASE)
    assert json.dumps(IMAGE.variables).count("/root") == 0
