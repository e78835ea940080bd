"""The services of the compose files as processes: read-only roots, no root user, own ports.

What it cannot show: that the images are there, and Docker's own networks, volumes and restarts.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from containers import COMPOSE_FILES, DEPLOY, Sandbox, image_environment, needs_bubblewrap, services
from flower.processes import BIN, end, free_port, wait_until
from helpers import REPOSITORY
from PIL import Image

from fedadb_app.certificates import issue

pytestmark = [
    pytest.mark.flower,
    pytest.mark.timeout(1500),
    needs_bubblewrap,
    pytest.mark.skipif(not shutil.which("nginx", path="/usr/sbin:/usr/bin"), reason="no nginx"),
]


@dataclass(frozen=True)
class Machine:
    """What a compose file finds on this machine: folders for volumes and secrets, free ports."""

    home: Path
    credentials: Path
    ports: dict[str, str]

    def here(self, text: str) -> str:
        """Put this machine's ports and address into a text."""
        text = re.sub(r"\b(8000|8001|9094|9464)\b", lambda port: self.ports[port[0]], text)
        return text.replace("superlink.example.org:", "127.0.0.1:")

    def sandbox(self, side: str, name: str) -> Sandbox:
        """Return what a service may see and write."""
        service = services(side)[name]
        mounts: dict[bool, dict[str, Path]] = {False: {}, True: {}}
        for volume in service["volumes"]:
            source, _, target = volume.removesuffix(":ro").rpartition(":")
            path = {"./nginx.conf": self.home / "nginx.conf"}.get(source)
            path = path or self.home / side / ("images" if source.startswith("${") else source)
            mounts[volume.endswith(":ro")][target] = path
        secrets = yaml.safe_load(COMPOSE_FILES[side].read_text())["secrets"]
        for secret in service.get("secrets", []):
            file = secrets[secret]["file"].removeprefix("../credentials/")
            file = "north.key" if file.startswith("${FEDADB_KEY:?") else file
            mounts[True][f"/run/secrets/{secret}"] = self.credentials / file
        environment = image_environment() | {
            "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin",  # for the image's /opt/fedadb/bin
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        return Sandbox(mounts[False], mounts[True], tuple(service["tmpfs"]), environment)

    def operate(self, *words: str) -> None:
        """Run a command as `docker compose exec superlink` does."""
        command = self.sandbox("superlink", "superlink").command(*words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @contextmanager
    def up(self, side: str, name: str) -> Iterator[None]:
        """Keep a service running; its output goes to a file."""
        service = services(side)[name]
        words = [*service.get("entrypoint", []), *service.get("command", [])]
        command = self.sandbox(side, name).command(*map(self.here, words))
        log = self.home / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            yield
        finally:
            end(process)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Credentials, a hospital's images and empty volumes."""
    issue(tmp_path / "credentials", ["superlink.example.org"], ["north"], 365)
    for volume in ("superlink/state/runs", "superlink/results", "supernode/state"):
        (tmp_path / volume).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        folder = tmp_path / "supernode" / "images" / name
        folder.mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 256, (28, 28), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:02}.png")
    ports = {port: str(free_port()) for port in ("8000", "8001", "9094", "9464")}
    found = Machine(tmp_path, tmp_path / "credentials", ports)
    (tmp_path / "nginx.conf").write_text(found.here((DEPLOY / "nginx.conf").read_text()))
    state = tmp_path / "superlink" / "state"
    (state / "flower").mkdir()
    (state / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "hospitals"\n\n[superlink.hospitals]\n'
        f'address = "127.0.0.1:{ports["8001"]}"\nroot-certificates = "/run/secrets/ca.crt"\n'
    )
    shutil.copy(found.credentials / "north.pub", state)
    return found


def health_checks(machine: Machine) -> dict[str, Callable[[], bool]]:
    """Return what runs each service's own health check, in a sandbox like the service's."""

    def check(side: str, name: str) -> bool:
        kind, *words = services(side)[name]["healthcheck"]["test"]
        assert kind == "CMD"
        command = machine.sandbox(side, name).command(*map(machine.here, words))
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    return {name: partial(check, side, name) for side in COMPOSE_FILES for name in services(side)}


def test_the_services_are_healthy_and_a_run_completes(machine):
    passes = health_checks(machine)
    assert not any(check() for check in passes.values())  # or they would say nothing
    with ExitStack() as running:
        for name in ("proxy", "superlink", "metrics"):
            running.enter_context(machine.up("superlink", name))
        for name in ("superlink", "proxy", "metrics"):
            wait_until(passes[name], f"{name} is not healthy")
        assert not passes["supernode"]()
        machine.operate("flwr", "supernode", "register", "/var/lib/fedadb/north.pub", "hospitals")
        running.enter_context(machine.up("supernode", "supernode"))
        wait_until(passes["supernode"], "the SuperNode is not healthy")
        trust = ssl.create_default_context(cafile=machine.credentials / "ca.crt")
        proxy = f"https://127.0.0.1:{machine.ports['8000']}"
        assert httpx.get(f"{proxy}/v1/control/", verify=trust).status_code == 403
        where = ["--app", str(REPOSITORY), "--superlink", "hospitals"]
        run_config = (
            'dataset="nodes" classes="cat,dog" image-shape="1x28x28" model="lenet" min-nodes=1 '
            'strategy="fedavg" num-server-rounds=1 local-epochs=1 evaluate="clients" '
            'node-timeout=600.0 output-dir="/var/lib/fedadb/runs" run-name="study"'
        )
        machine.operate("fedadb", "run", *where, "-c", run_config)
        results = machine.home / "superlink" / "results" / "study"
        assert json.loads((results / "summary.json").read_text())["status"] == "completed"
        scraped = httpx.get(f"http://127.0.0.1:{machine.ports['9464']}/metrics").text
        assert 'fedadb_status{run="study",status="completed"} 1.0' in scraped
