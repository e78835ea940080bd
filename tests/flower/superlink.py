"""A SuperLink of our own, for simulations or for SuperNodes.

SuperNodes and their SuperLink are started as docs/deploy.md starts them, by `fedadb superlink` and
`fedadb supernode`; what these commands become is started at once, since the `fedadb` command itself
imports for seconds.
"""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from flower.processes import (
    BIN,
    PATIENCE,
    Processes,
    birth,
    descendants,
    end,
    free_port,
    wait_until,
)
from flower.runs import Outcome, Submitted

from fedadb_app import flower_processes


@dataclass
class SuperLink(Processes):
    """A SuperLink of our own, and the ``flwr`` command pointed at it.

    With credentials, a folder of `fedadb certificates`, it speaks TLS and asks SuperNodes for keys.
    With a database, it keeps who is registered there. A simulation's, or a `plain` one, and its
    SuperNodes, are started by Flower's own commands. SuperNodes come to its `door`, if that is
    another port.
    """

    app: Path
    simulation: bool
    credentials: Path | None = None
    database: Path | None = None
    plain: bool = False
    port: int = field(default_factory=lambda: free_port())
    door: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

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
        kept = ["--database", str(self.database)] if self.database else []
        options = [*security, "--isolation", "subprocess", *address, *mode, *kept]
        self.process = self.spawn("superlink", *self._command("superlink"), *options)
        wait_until(self._healthy, f"no SuperLink at port {self.port}")

    def _command(self, name: str) -> list[str]:
        if self.plain or self.simulation:
            return [f"flower-{name}"]
        return flower_processes.command(getattr(flower_processes, name))

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

    def kill_runs(self) -> None:
        """End all that the SuperLink started but its SuperExec, at once and without a word."""
        for pid in descendants(self.process.pid):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"superexec" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

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
        """Start a SuperNode that must give up; return what it says.

        That is Flower's code in either case; this one has not imported much for nothing.
        """
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
        self, path: Path, *security: str, **node_config: Path
    ) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        """Connect a SuperNode that holds its own images; `study` and the like are paths, too."""
        config = {"data-path": path} | {k.replace("_", "-"): v for k, v in node_config.items()}
        return self._node(" ".join(f'{key}="{value}"' for key, value in config.items()), *security)

    @contextlib.contextmanager
    def _node(self, node_config: str, *security: str) -> Iterator[subprocess.Popen[bytes]]:
        door = f"127.0.0.1:{self.door or self.port}"
        address = ["--superlink", door, "--port", str(free_port())]
        options = [*(security or ["--insecure"]), *address, "--node-config", node_config]
        process = self.spawn("supernode", *self._command("supernode"), *options)
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
        """Wait until Flower says that a run has finished.

        A question costs 2 s of a core, so it is asked when the run's summary says that it is over,
        and seldom before: a run without a summary may end without one, one that runs may be killed.
        """
        deadline = time.monotonic() + PATIENCE
        asked = time.monotonic()
        pauses = {"": 8, "running": 60}
        while time.monotonic() < deadline:
            time.sleep(0.3)
            if time.monotonic() - asked > pauses.get(run.summary_status(), 1.5):
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

    def await_log(self, run: Submitted, words: str) -> None:
        """Wait until a run's log says so."""
        wait_until(lambda: words in self.log(run.run_id), f"the log does not say {words!r}")

    def await_rest(self) -> None:
        """Wait until nothing is left below the SuperLink but its SuperExec."""
        wait_until(
            lambda: len([pid for pid in descendants(self.process.pid) if birth(pid)]) <= 1,
            "processes of a run are left over",
        )

    def online(self) -> set[str]:
        """Return the ids of the SuperNodes that are connected."""
        rows = json.loads(self.flwr("supernode", "list", "test", "--format", "json").stdout)
        return {row["node-id"] for row in rows["nodes"] if row["status"] == "online"}

    def log(self, run_id: str) -> str:
        done = self.flwr("log", run_id, "test", "--show")
        return done.stdout + done.stderr
