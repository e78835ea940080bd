"""Real Flower processes: a SuperLink for simulations, a SuperLink for SuperNodes, and two apps.

Everything a process writes lies in temporary folders (``FLWR_HOME``, ``HOME``, caches, Ray); the
ports are free ones, so nothing here meets a federation that runs on the same machine.
"""

import contextlib
import csv
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from fedadb_app.certificates import issue

CHECKOUT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 600
"""Seconds until a run counts as hanging; on two free cores one takes 10 to 60."""

# What the rehearsal app's clients do beside training: every one notes (round, client) in
# <output-dir>/trained.txt, and those named in <output-dir>/script.json misbehave.
REHEARSAL = '''

import json
import os
import time
from pathlib import Path

import torch


@app.train()
def rehearse(message: Message, context: Context) -> Message:
    """Train as the script of this run says: {"<client>@<round>": <deed>}."""
    folder = Path(context.run_config["output-dir"])
    client = context.node_config["partition-id"]
    key = f"{client}@{message.content['config']['round']}"
    with (folder / "trained.txt").open("a") as file:
        file.write(key + "\\n")
    deed = json.loads((folder / "script.json").read_text()).get(key)
    if deed == "raise":
        raise RuntimeError("the script says so")
    if deed == "die":
        os._exit(1)
    if deed == "hang":
        time.sleep(300)
    reply = train(message, context)
    if deed is not None:
        model = messages.to_state_dict(reply.content["arrays"])
        name = next(iter(model))
        wrong = {"shape": model[name][:1], "nan": torch.full_like(model[name], torch.nan)}
        model[name] = wrong[deed]
        reply.content["arrays"] = messages.to_arrays(model)
    return reply
'''


@dataclass(frozen=True)
class Outcome:
    """How a run ended: Flower's status and details, and the folder it left (None: no folder)."""

    run_id: str
    status: str
    details: str
    folder: Path | None

    def summary(self) -> dict[str, object]:
        return json.loads(self.file("summary.json").read_text())

    def partition(self) -> dict[str, object]:
        return json.loads(self.file("partition.json").read_text())

    def rounds(self) -> list[dict[str, str]]:
        with self.file("rounds.csv").open() as file:
            return list(csv.DictReader(file))

    def column(self, name: str) -> list[str]:
        return [row[name] for row in self.rounds()]

    def trained(self) -> list[str]:
        """Which clients of the rehearsal app trained when, as sorted client@round."""
        return sorted((self.file("..") / "trained.txt").read_text().split())

    def file(self, name: str) -> Path:
        assert self.folder is not None, f"the run left no folder: {self.status}, {self.details}"
        return self.folder / name


@dataclass(frozen=True)
class Submitted:
    """A run that has been started, and where its output-dir is."""

    run_id: str
    output: Path

    def folder(self) -> Path | None:
        """Return the run's folder, once it is there."""
        found = [path for path in self.output.iterdir() if path.is_dir()]
        return found[0] if found else None

    def has_begun(self, key: str) -> bool:
        """Whether the rehearsal app's client@round has begun to train."""
        trained = self.output / "trained.txt"
        return trained.exists() and key in trained.read_text().split()

    def finished_rounds(self) -> int:
        folder = self.folder()
        if folder is None or not (folder / "rounds.csv").exists():
            return 0
        return len((folder / "rounds.csv").read_text().splitlines()) - 1

    def summary_status(self) -> str:
        folder = self.folder()
        if folder is None or not (folder / "summary.json").exists():
            return ""
        return json.loads((folder / "summary.json").read_text())["status"]


@dataclass
class SuperLink:
    """A SuperLink of our own, and the ``flwr`` command pointed at it.

    With credentials, a folder of `fedadb certificates`, it speaks TLS and asks SuperNodes for keys.
    """

    home: Path
    app: Path
    simulation: bool
    credentials: Path | None = None
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] = field(init=False)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=lambda: count(1))
    # Ray's sockets lie here, whose paths must stay below 108 characters.
    _ray: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="fa-", dir="/tmp")))

    def start(self) -> None:
        folder = self.credentials
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n\n[superlink.test]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            + (f'root-certificates = "{folder}/ca.crt"\n' if folder else "insecure = true\n")
        )
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        mode = ["--simulation"] if self.simulation else []
        security = ["--insecure"]
        if folder:
            names = {"ca-certfile": "ca.crt", "certfile": "server.crt", "keyfile": "server.key"}
            security = [f"--ssl-{option}={folder / name}" for option, name in names.items()]
            security.append("--enable-supernode-auth")
        self.process = self.spawn(
            "flower-superlink", *security, "--isolation", "subprocess", *address, *mode
        )
        wait_until(self._healthy, f"no SuperLink at port {self.port}")

    def _healthy(self) -> bool:
        assert self.process.poll() is None, "the SuperLink ended"
        url, context = f"http://127.0.0.1:{self.port}/health", None
        if self.credentials:
            url = url.replace("http", "https")
            context = ssl.create_default_context(cafile=self.credentials / "ca.crt")
        try:
            with urllib.request.urlopen(url, timeout=2, context=context) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def spawn(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a long-lived process in a session of its own; its output goes to a file."""
        with (self.home / f"{command}-{next(self._number)}.log").open("wb") as log:
            process = subprocess.Popen(
                [BIN / command, *arguments],
                env=self.environment(),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self._processes):
            end(process)
        shutil.rmtree(self._ray, ignore_errors=True)

    def kill_runs(self) -> None:
        """End all that the SuperLink started but its SuperExec, at once and without a word."""
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"superexec" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """End a process of ours and all it started, at once and without a word."""
        for pid in [process.pid, *descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def environment(self) -> dict[str, str]:
        home = str(self.home)
        return {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": home,
            "FLWR_HOME": home,
            "XDG_CACHE_HOME": f"{home}/cache",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "UV_OFFLINE": "1",  # `uv sync` before each run must find nothing to download
            "UV_CACHE_DIR": f"{home}/uv",
            "RAY_TMPDIR": str(self._ray),
            "OMP_NUM_THREADS": "1",  # in Ray's workers and SuperNodes alike: the same sums
        }

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "flwr", *arguments],
            env=self.environment(),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refused_supernode(self, *arguments: str) -> str:
        """Start a SuperNode that must give up; return what it says."""
        # Not through a pipe: its SuperExec holds that open until this process has seen it end.
        with tempfile.TemporaryFile("w+") as log:
            done = subprocess.run(
                [BIN / "flower-supernode", "--port", str(free_port()), *arguments],
                env=self.environment(),
                cwd=self.home,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=120,
                check=False,
            )
            log.seek(0)
            said = log.read()
        assert done.returncode == 1, said
        return said

    def supernode(
        self, partition_id: int, num_partitions: int, *security: str
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Connect a SuperNode that holds one part of the data set."""
        return self._node(f"partition-id={partition_id} num-partitions={num_partitions}", *security)

    def hospital(
        self, path: Path, *security: str
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Connect a SuperNode that holds its own images."""
        return self._node(f'data-path="{path}"', *security)

    def node_logs(self) -> str:
        """What the SuperNodes have said so far."""
        return "".join(log.read_text() for log in self.home.glob("flower-supernode-*.log"))

    @contextlib.contextmanager
    def _node(self, node_config: str, *security: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.spawn(
            "flower-supernode",
            *(security or ["--insecure"]),
            "--superlink",
            f"127.0.0.1:{self.port}",
            "--port",
            str(free_port()),
            "--node-config",
            node_config,
        )
        try:
            yield process
        finally:
            end(process)

    def submit(
        self,
        config: str,
        federation: str = "",
        app: Path | None = None,
        script: dict[str, str] | None = None,
    ) -> Submitted:
        """Start a run in an output-dir of its own (unless `config` names one)."""
        output = self.home / "runs" / str(next(self._number))
        output.mkdir(parents=True)
        (output / "script.json").write_text(json.dumps(script or {}))
        if "output-dir" not in config:
            config += f' output-dir="{output}"'
        if "node-timeout" not in config:  # Ray's start on a busy machine counts as waiting
            config += f" node-timeout={PATIENCE}.0"
        command = ["run", str(app or self.app), "test", "--format", "json", "--run-config", config]
        if federation:
            command += ["--federation-config", federation]
        done = self.flwr(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        answer = json.loads(done.stdout)
        assert answer["success"], answer
        return Submitted(answer["run-id"], output)

    def status(self, run: Submitted) -> tuple[str, str]:
        done = self.flwr("list", "test", "--run-id", run.run_id, "--format", "json")
        row = json.loads(done.stdout)["runs"][0]
        return row["status"], row["status-details"]

    def wait(self, run: Submitted) -> Outcome:
        """Wait until Flower says that a run has finished; ask it seldom, a question costs 1.5 s."""
        deadline = time.monotonic() + PATIENCE
        asked = time.monotonic()
        while time.monotonic() < deadline:
            time.sleep(0.3)
            over = run.summary_status() not in {"", "running"}
            if time.monotonic() - asked > (1.5 if over else 6):
                status, details = self.status(run)
                asked = time.monotonic()
                if status.startswith("finished"):
                    return Outcome(run.run_id, status, details, run.folder())
        pytest.fail(f"run {run.run_id} has not finished after {PATIENCE} s\n{self.log(run.run_id)}")

    def run(
        self,
        config: str,
        federation: str = "",
        app: Path | None = None,
        script: dict[str, str] | None = None,
    ) -> Outcome:
        return self.wait(self.submit(config, federation, app, script))

    def await_begin(self, run: Submitted, key: str) -> None:
        """Wait until the rehearsal app's client@round has begun to train."""

        def begun() -> bool:
            assert run.summary_status() in {"", "running"}, self.log(run.run_id)
            return run.has_begun(key)

        wait_until(begun, f"{key} has not begun")

    def await_summary(self, run: Submitted, status: str) -> None:
        """Wait until a run's own summary says so."""
        wait_until(lambda: run.summary_status() == status, f"the summary does not say {status}")

    def await_rest(self) -> None:
        """Wait until nothing is left below the SuperLink but its SuperExec."""
        wait_until(
            lambda: len([pid for pid in descendants(self.process.pid) if birth(pid)]) <= 1,
            "processes of a run are left over",
        )

    def log(self, run_id: str) -> str:
        done = self.flwr("log", run_id, "test", "--show")
        return done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.3)


def end(process: subprocess.Popen[bytes], patience: float = 15) -> None:
    """End a process and what it started: ask, wait, then kill what is left, by its id.

    Flower detaches its SuperExec into another session, which leaves by itself when its parent has
    gone; so does everything below it. What does not is killed.
    """
    family = {pid: born for pid in descendants(process.pid) if (born := birth(pid))}
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        process.poll()  # reaps it, or it would stay as a zombie
        family = {pid: born for pid, born in family.items() if birth(pid) == born}
        if process.returncode is not None and not family:
            return
        time.sleep(0.1)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    found, parents = [], [pid]
    while parents:
        parent = parents.pop()
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            children = [int(c) for t in tasks for c in (t / "children").read_text().split()]
        except OSError:  # it has ended meanwhile
            continue
        found += children
        parents += children
    return found


def birth(pid: int) -> str:
    """Return when a process began, in ticks; empty if it is no more (or only a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def copy_app(target: Path) -> Path:
    """Copy what a FAB carries out of the checkout."""
    target.mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "client_app.py", "server_app.py"):
        shutil.copy(CHECKOUT / name, target)
    for name in ("fedadb_app", "strategies"):
        shutil.copytree(
            CHECKOUT / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return target


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The app as it is; a copy, so that an edit during the tests does not split them."""
    return copy_app(tmp_path_factory.mktemp("apps") / "app")


@pytest.fixture(scope="session")
def rehearsal_app(app: Path) -> Path:
    """The app with clients that follow a script (`REHEARSAL`)."""
    target = shutil.copytree(app, app.parent / "rehearsal")
    code = (target / "client_app.py").read_text()
    handler = "@app.train(mods=[local_privacy])\n"
    assert code.count(handler) == 1
    (target / "client_app.py").write_text(code.replace(handler, "") + REHEARSAL)
    return target


def superlink(
    home: Path, app: Path, simulation: bool, credentials: Path | None = None
) -> Iterator[SuperLink]:
    """Start one in a folder where modules of our names lie that no run may import."""
    home.mkdir()
    for name in ("client_app", "server_app", "strategies", "fedadb_app"):
        (home / f"{name}.py").write_text("raise RuntimeError('not the module of the run')\n")
    link = SuperLink(home, app, simulation, credentials)
    try:
        link.start()
        yield link
    finally:
        link.stop()


@pytest.fixture(scope="session")
def simulation(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that simulates its SuperNodes, as the managed local one does."""
    yield from superlink(tmp_path_factory.mktemp("simulation") / "home", app, simulation=True)


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that real SuperNodes connect to."""
    yield from superlink(tmp_path_factory.mktemp("deployment") / "home", app, simulation=False)


@pytest.fixture
def doomed_deployment(tmp_path: Path, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that real SuperNodes connect to, for one test, which may kill it."""
    yield from superlink(tmp_path / "home", app, simulation=False)


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory, app: Path) -> Iterator[SuperLink]:
    """A SuperLink that speaks TLS as superlink.example.org and admits SuperNodes by their key."""
    folder = tmp_path_factory.mktemp("guarded")
    issue(folder / "credentials", ["superlink.example.org"], ["hospital-a", "hospital-b"], 365)
    yield from superlink(folder / "home", app, False, folder / "credentials")


@pytest.fixture(scope="session")
def bare_run(simulation: SuperLink) -> Outcome:
    """All defaults but the number of rounds; the deployment runs the same."""
    return simulation.run("num-server-rounds=2")
