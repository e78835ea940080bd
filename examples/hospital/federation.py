"""Three hospitals on one machine: own images, TLS, node authentication, FedADB.

``python examples/hospital/federation.py`` writes three folders of images with different classes,
certificates and keys, starts a SuperLink and three SuperNodes as processes of their own, trains,
and prints the result. Every command is shown as it would be typed; docs/deploy.md does the same
across machines. All files lie in one folder, ``FLWR_HOME`` included, so no other federation is
touched.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import httpx
import psutil
import typer
from PIL import Image
from rich.console import Console

from fedadb_app.data.sources import open_dataset

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HOSPITALS = {"north": range(5), "south": range(3, 8), "west": [0, 1, 6, 7, 8, 9]}
"""Which handwritten digits each hospital holds; together all ten, each alone at most six."""

console = Console(highlight=False, soft_wrap=True)


def main(
    folder: Annotated[
        Path | None, typer.Option(help="A new folder for everything; else a temporary one.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 6,
) -> None:
    """Build the federation, run it, and exit with 1 unless it completed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or Flower's processes would stay
    folder = Path(tempfile.mkdtemp(prefix="hospitals-")) if folder is None else folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: give a new folder")
    names = write_images(folder)
    credentials = folder / "credentials"
    nodes = [word for name in HOSPITALS for word in ("--node", name)]
    call(folder, "fedadb", "certificates", "--output", credentials, "--host", "localhost", *nodes)
    address = f"localhost:{free_port()}"
    write_connection(folder, address, credentials / "ca.crt")
    with ExitStack() as processes:
        processes.enter_context(superlink(folder, credentials, address))
        for name in HOSPITALS:
            key = credentials / f"{name}.pub"
            call(folder, "flwr", "supernode", "register", key, "hospitals", "--name", name)
        run_config = (
            f'dataset="nodes" classes="{",".join(names)}" image-shape="1x28x28" model="lenet" '
            f'strategy="fedadb" batch-size=16 learning-rate=0.02 num-server-rounds={rounds} '
            f'evaluate="clients" min-nodes={len(HOSPITALS)} output-dir="{folder}/results"'
        )
        for name in HOSPITALS:
            options = joining(folder, credentials, address, name)
            call(folder, "fedadb", "check-node", *options, "--run-config", run_config)
            own_port = ["--port", str(free_port())]  # only because all nodes share this machine
            command = ["fedadb", "supernode", *options, *own_port]
            processes.enter_context(started(folder, f"supernode-{name}", *command))
        where = ["--app", CHECKOUT, "--superlink", "hospitals"]
        call(folder, "fedadb", "run", *where, "--run-config", run_config)
    console.print(f"\nLogs, keys, images and results: {folder}")


# --- what a hospital has --------------------------------------------------------------------


def write_images(folder: Path) -> list[str]:
    """Write each hospital's class folders of PNG files and return the names of all classes."""
    digits = open_dataset("digits", "")
    for hospital, classes in HOSPITALS.items():
        for position, label in enumerate(digits.train_labels):
            if label in classes and position % len(HOSPITALS) == list(HOSPITALS).index(hospital):
                target = folder / hospital / "images" / digits.class_names[label]
                target.mkdir(parents=True, exist_ok=True)
                pixels = digits.train_images[position][0]
                Image.fromarray(pixels).save(target / f"{position:04}.png")
    return list(digits.class_names)


def joining(folder: Path, credentials: Path, address: str, name: str) -> list[str]:
    """Return the options with which a hospital's machine checks itself, and then joins."""
    return [
        *("--superlink", address),
        *("--root-certificates", str(credentials / "ca.crt")),
        *("--auth-supernode-private-key", str(credentials / f"{name}.key")),
        *("--node-config", f'data-path="{folder / name / "images"}"'),
    ]


# --- processes ------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """Return the environment in which Flower's files lie in the example's folder."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "FLWR_HOME": str(folder / "flower"),
        "XDG_CACHE_HOME": str(folder / "cache"),  # SuperNodes keep their images as arrays there
    }


def write_connection(folder: Path, address: str, ca: Path) -> None:
    """Tell the `flwr` command where the SuperLink is, and whom to trust."""
    config = folder / "flower" / "config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text(
        f'[superlink]\ndefault = "hospitals"\n\n[superlink.hospitals]\n'
        f'address = "{address}"\nroot-certificates = "{ca}"\n'
    )


@contextmanager
def superlink(folder: Path, credentials: Path, address: str) -> Iterator[None]:
    """Keep a SuperLink running that speaks TLS and admits registered keys only."""
    command = [
        *("fedadb", "superlink"),
        *("--host", "127.0.0.1", "--port", address.split(":")[1]),
        *("--ssl-ca-certfile", str(credentials / "ca.crt")),
        *("--ssl-certfile", str(credentials / "server.crt")),
        *("--ssl-keyfile", str(credentials / "server.key")),
        "--enable-supernode-auth",
        *("--database", str(folder / "superlink.db")),
    ]
    with started(folder, "superlink", *command) as process:
        while True:
            try:
                httpx.get(f"https://{address}/health", verify=str(credentials / "ca.crt"))
                break
            except httpx.TransportError:
                if process.poll() is not None:
                    log = folder / "logs" / "superlink.log"
                    sys.exit(f"the SuperLink did not start: {log.read_text()[-500:]}")
                time.sleep(0.2)
        yield


@contextmanager
def started(folder: Path, name: str, *command: str) -> Iterator[psutil.Popen]:
    """Keep a process running; its output goes to a log, and what it started ends with it."""
    show(command)
    log = folder / "logs" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("wb") as output:
        process = psutil.Popen(
            command, env=environment(folder), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        tree: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            tree = [*process.children(recursive=True), process]
        for part in tree:
            with suppress(psutil.NoSuchProcess):
                part.terminate()
        for part in psutil.wait_procs(tree, timeout=20)[1]:
            part.kill()


def call(folder: Path, *command: str | Path) -> None:
    """Run a command to its end, and stop here if it fails."""
    words = list(map(str, command))
    show(words)
    done = subprocess.run(words, env=environment(folder), check=False)
    if done.returncode:
        sys.exit(f"{words[0]} {words[1]} ended with {done.returncode}; logs: {folder / 'logs'}")


def show(command: list[str] | tuple[str, ...]) -> None:
    """Print a command as one would type it."""
    console.print(f"\n[bold]$ {shlex.join(command)}[/]", markup=True)


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    typer.run(main)
