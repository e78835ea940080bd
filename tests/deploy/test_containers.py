"""deploy/: lint, the schema of compose files, and what an IT department is promised of them."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from containers import (
    COMPOSE_FILES,
    CONTAINERFILE,
    DEPLOY,
    USER,
    Sandbox,
    image_environment,
    instructions,
    needs_bubblewrap,
    services,
)
from helpers import REPOSITORY

BIN = Path(sys.executable).parent
SERVICES = [(side, name) for side in COMPOSE_FILES for name in services(side)]


def test_the_containerfile_passes_the_linter():
    done = subprocess.run(
        [BIN / "hadolint", CONTAINERFILE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("side", COMPOSE_FILES)
def test_a_compose_file_fits_the_schema(side):
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, COMPOSE_FILES[side]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("side", "name"), SERVICES)
def test_no_service_is_root_or_can_write_to_its_image(side, name):
    service = services(side)[name]
    assert service["user"] == f"{USER}:{USER}"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert "privileged" not in service


def test_the_image_runs_as_the_user_of_the_services():
    last_stage = instructions()[[step for step, _ in instructions()].index("USER") :]
    assert last_stage[0] == ("USER", str(USER))
    assert not any(step == "USER" for step, _ in last_stage[1:])


def test_images_and_secrets_are_never_writable():
    (images,) = [v for v in services("supernode")["supernode"]["volumes"] if ":/data" in v]
    assert images.endswith(":/data:ro")
    for _, value in instructions():
        assert ".key" not in value  # a secret in an image stays in its layers for ever


def test_all_that_the_image_copies_is_let_in():
    lines = (DEPLOY / "Containerfile.dockerignore").read_text().split()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    copied = set()
    for step, value in instructions():
        if step == "COPY" and "--from" not in value:
            copied |= set(value.split()[:-1])
    assert {source.replace("wheel[s]", "wheels") for source in copied} == let_in


def test_the_proxy_lets_through_what_the_page_says():
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    lines = {line.strip() for line in page.splitlines()}
    for line in (DEPLOY / "nginx.conf").read_text().splitlines():
        if line.strip().startswith(("location", "proxy_ssl", "client_max", "proxy_request")):
            assert line.strip().replace("/run/secrets/", "/etc/fedadb/") in lines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_folder_of_wheels_is_enough_to_install(tmp_path):
    """The page's commands; the dependencies are too large for a test, so they are left out."""
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    assert "pip wheel --wheel-dir wheels . hatchling " in page
    assert "pip install --no-index --find-links wheels fedadb-app" in page
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, REPOSITORY], check=True)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    offline = [tmp_path / "venv" / "bin" / "pip", "install", "--no-index", "--find-links", wheels]
    # Neither the settings of this machine's pip nor an index can help.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    environment |= {"PIP_CONFIG_FILE": os.devnull}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [*offline, "fedadb-app"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "No matching distribution found for" in done.stderr  # of a dependency
    assert "for fedadb-app\n" not in done.stderr
    subprocess.run([*offline, "--no-deps", "fedadb-app"], env=environment, check=True)
    assert (tmp_path / "venv" / "bin" / "fedadb").exists()


@pytest.mark.slow
@needs_bubblewrap
@pytest.mark.timeout(900)
def test_the_steps_of_the_image_can_be_replayed(tmp_path):
    """Each RUN and COPY, in a root of its own; the libraries are this environment's.

    What it cannot show: that the base image is there, and the download of the dependencies.
    """
    stages: list[Path] = []
    sources = {}  # where a COPY takes from: the repository, or an earlier stage
    environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": "/tmp"}
    folder = "/"
    for step, value in instructions():
        if step == "FROM":
            stage = tmp_path / f"stage-{len(stages)}"
            for name in ("opt", "src", "var/lib"):
                (stage / name).mkdir(parents=True)
            shutil.copytree("/etc", stage / "etc", symlinks=True, ignore_dangling_symlinks=True)
            if " AS " in value:
                sources[value.split(" AS ")[1]] = stage
            stages.append(stage)
            folder = "/"
        elif step == "WORKDIR":
            folder = value
        elif step == "COPY":
            words = value.split()
            origin = REPOSITORY
            if words[0].startswith("--from="):
                origin = sources[words.pop(0).removeprefix("--from=")]
            target = Path(folder, words[-1])  # which may begin with / itself
            copy(origin, words[:-1], stages[-1] / target.relative_to("/"))
        elif step == "RUN":
            run(value, stages[-1], folder, environment)
    site_packages = next(path for path in sys.path if path.endswith("site-packages"))
    image = stages[-1]
    for inside in ("opt/app/client_app.py", "opt/app/strategies/fedadb.py", "var/lib/fedadb/runs"):
        assert (image / inside).exists()
    assert f":{USER}:" in (image / "etc" / "passwd").read_text()
    assert (image / "var/lib/fedadb").stat().st_mode & 0o777 == 0o700
    box = sandbox(image, {**image_environment(), "PYTHONPATH": site_packages})
    done = subprocess.run(
        box.command("/opt/fedadb/bin/fedadb", "--help"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "metrics" in done.stdout


def copy(origin: Path, sources: list[str], target: Path) -> None:
    """Do as COPY: a folder's contents, a file under its name."""
    for source in sources:
        found = list(origin.glob(source.lstrip("/")))
        assert found or "[" in source, f"{source} is not there"
        for path in found:
            if path.is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, target, dirs_exist_ok=True, symlinks=True, ignore=ignore)
            else:
                target.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def run(line: str, stage: Path, folder: str, environment: dict[str, str]) -> None:
    """Do as RUN, as root within the sandbox; pip installs no dependencies."""
    box = sandbox(stage, {**environment, "PIP_OPTIONS": "--no-deps"})
    for name, value in os.environ.items():
        if name.startswith("PIP_"):
            box.environment[name] = value
    # There is one user in the sandbox: nothing can be given to another.
    line = line.replace(f"--owner={USER}", "")
    done = subprocess.run(
        box.command("sh", "-e", "-c", line, user=0, folder=folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.quote(line)}: {done.stdout}{done.stderr}"


def sandbox(stage: Path, environment: dict[str, str]) -> Sandbox:
    own = {f"/{name}": stage / name for name in ("opt", "src", "var", "etc")}
    return Sandbox(own, {}, ("/tmp",), environment)
