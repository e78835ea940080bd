"""A real SuperLink and real SuperNodes on this machine, the same app."""

import contextlib
import os
import sqlite3
import subprocess
import time
from contextlib import closing

import numpy as np
import pytest
from flower.apps import copy_app
from flower.processes import BIN, command_line

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]


# --- without a SuperNode --------------------------------------------------------------------


@pytest.fixture(scope="module")
def without_nodes(deployment, rehearsal_app, tmp_path_factory):
    """Runs that cannot begin, by what is wrong with them, and `fedadb run`; started together."""
    folder = tmp_path_factory.mktemp("bad")
    labels = np.arange(40).reshape(-1, 1) % 4
    images = np.zeros((40, 28, 28), np.uint8)
    whole = folder / "cut.npz"
    np.savez(
        whole, train_images=images, train_labels=labels, test_images=images, test_labels=labels
    )
    whole.write_bytes(whole.read_bytes()[:40_000])
    (folder / "file").touch()
    (folder / "script.json").write_text('{"server": "linger"}')
    values = f'min-nodes=2 node-timeout=3.0 output-dir="{folder}" run-name="lingering"'
    options = ["--app", rehearsal_app, "--superlink", "test", "--run-config", values]
    waiting = subprocess.Popen(
        [BIN / "fedadb", "run", *options],
        env=deployment.environment(),
        cwd=deployment.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    submitted = {
        "nodes": deployment.submit("min-nodes=2 node-timeout=3"),
        "type": deployment.submit('learning-rate="abc"'),
        "data": deployment.submit(f'dataset="{whole}"'),
        "output": deployment.submit(f'output-dir="{folder}/file/runs"'),
    }
    outcomes = {wrong: deployment.wait(run) for wrong, run in submitted.items()}
    said, _ = waiting.communicate(timeout=200)
    return outcomes | {"fedadb run": (waiting.returncode, " ".join(said.split()))}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            "nodes",
            "0 SuperNodes are connected after node-timeout=3 s, but 2 are needed: start more",
        ),
        ("type", 'learning-rate="abc" is not allowed: expected a finite number greater than 0'),
        ("data", "cut.npz is damaged or no .npz file"),
        ("output", "cannot be written to (Not a directory); set output-dir to a folder that"),
    ],
)
def test_a_run_that_cannot_begin_fails_with_one_sentence(without_nodes, wrong, sentence):
    outcome = without_nodes[wrong]
    assert outcome.status == "finished:failed"
    assert sentence in outcome.details
    assert "\n" not in outcome.details.strip()
    if outcome.folder is not None:  # the folder is there once the configuration is known to be fine
        assert outcome.summary()["status"] == "failed"
        assert sentence in outcome.summary()["reason"]
        assert outcome.rounds() == []


def test_fedadb_run_returns_although_flowers_process_lives_on(without_nodes):
    code, said = without_nodes["fedadb run"]
    assert code == 1
    assert "the run failed: 0 SuperNodes are connected after node-timeout=3 s, but 2 are" in said


def test_a_run_stopped_while_it_waits_for_nodes_has_said_so_and_says_so(deployment):
    run = deployment.submit("local-epochs=1")
    deployment.await_summary(run, "running")
    deployment.await_log(run, "0 SuperNodes are connected, 1 are needed; waiting, for ")
    assert deployment.flwr("stop", run.run_id, "test").returncode == 0
    deployment.await_summary(run, "stopped")
    assert deployment.wait(run).status == "finished:stopped"


# --- two SuperNodes -------------------------------------------------------------------------

WITNESS = """

import os

import fedadb_app as witnessed

with open(os.path.join(os.environ["FLWR_HOME"], "witness.txt"), "a") as file:
    file.write(f"{os.getppid()} {witnessed.__file__}\\n")
"""


class TwoSuperNodes(contextlib.ExitStack):
    """Two SuperNodes, of which the second can be killed and started again for whoever is next."""

    def __init__(self, deployment):
        super().__init__()
        self._deployment = deployment
        self._first, self._second = map(self._start, range(2))

    def _start(self, part):
        return self.enter_context(self._deployment.supernode(part, 2))

    def kill_second(self):
        self._deployment.kill(self._second)

    def start_second(self):
        self._second = self._start(1)


@pytest.fixture(scope="module")
def supernodes(deployment):
    with TwoSuperNodes(deployment) as two:
        yield two


@pytest.fixture(scope="module")
def deployed_run(deployment, supernodes, tmp_path_factory):
    """The bare run, after the database was locked for longer than Flower itself waits."""
    app = copy_app(tmp_path_factory.mktemp("witness") / "app")
    with (app / "client_app.py").open("a") as code:
        code.write(WITNESS)
    with closing(sqlite3.connect(deployment.database, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(8)
        database.execute("ROLLBACK")
    return deployment.run("num-server-rounds=2", app=app)


def test_supernodes_compute_what_one_process_computes(deployed_run, bare_twin):
    """And so what a simulation does (`test_simulation.py`)."""
    assert deployed_run.status == "finished:completed", deployed_run.details
    for column in ("round", "accuracy", "loss", "anchor_quality", "bytes_down", "bytes_up"):
        assert deployed_run.column(column) == bare_twin.column(column)
    assert deployed_run.partition() == bare_twin.partition()
    assert {path.name for path in deployed_run.folder.iterdir()} == {
        path.name for path in bare_twin.folder.iterdir()
    }


def test_clients_are_forked_and_run_the_code_that_the_run_brings(deployment, deployed_run):
    lines = (deployment.home / "witness.txt").read_text().split("\n")[:-1]
    parents, files = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert len(lines) == 6  # two nodes are asked who they are, and train twice
    assert all(file.startswith(str(deployment.home / "apps")) for file in files)
    assert len(set(parents)) == 2  # one process at each node
    assert os.getpid() not in map(int, parents)
    assert all(b"forkserver" in command_line(int(parent)) for parent in parents)


def test_a_database_that_is_locked_for_longer_than_flower_waits_ends_nothing(
    deployment, deployed_run
):
    """With Flower's own five seconds, the SuperExec's next question is answered with 500."""
    assert deployed_run.status == "finished:completed", deployed_run.details
    assert deployment.process.poll() is None
    assert "database is locked" not in deployment.said()


def test_a_run_outlives_a_killed_supernode_which_comes_back_and_a_dead_client_process(
    deployment, supernodes, deployed_run, rehearsal_app, tmp_path
):
    # The limit follows the machine: four times what a round of the run before took.
    limit = max(30.0, 4 * max(map(float, deployed_run.column("seconds_train"))))
    run = deployment.submit(
        f'strategy="feddyn" local-epochs=1 num-server-rounds=4 round-timeout={limit:.1f} '
        f'client-state-dir="{tmp_path}"',
        app=rehearsal_app,
        script={"1@2": "hang", "1@4": "die"},
    )
    deployment.await_begin(run, "1@2")
    supernodes.kill_second()
    supernodes.start_second()
    outcome = deployment.wait(run)
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("failures") == ["0", "1", "0", "1"]
    assert outcome.column("clients") == ["2", "1", "2", "1"]
    assert "1@3" in outcome.trained()
    # A dead process gives no reply; the SuperLink and a SuperNode notice after a minute without
    # heartbeats.
    assert all(float(seconds) < limit + 10 for seconds in outcome.column("seconds_train"))
    log = deployment.log(outcome.run_id)
    # Which reason comes first, silence or the missed heartbeats, depends on the limit.
    assert "round 2: client 1 failed: " in log
    assert "round 4: client 1 failed: " in log
    assert "has lost the state" not in log  # FedDyn's v_k of round 1 lay on the node's disk
    rows = outcome.file("diagnostics.csv").read_text().splitlines()
    lost = [row for row in rows if "client_states_lost" in row]
    assert lost == [f"{t},client_states_lost,0" for t in (1, 2, 3, 4)]
