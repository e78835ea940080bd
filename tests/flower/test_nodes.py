"""`fedadb superlink` and `fedadb supernode` in real processes."""

import json
import os
import signal
import sqlite3
import time
from contextlib import closing

import pytest
from flower.apps import copy_app
from flower.launched import command_line, launched, superexec_of

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]

SMALL = 'strategy="fedavg" local-epochs=1'

WITNESS = """

import os

import fedadb_app as witnessed

with open(os.path.join(os.environ["FLWR_HOME"], "witness.txt"), "a") as file:
    file.write(f"{os.getppid()} {witnessed.__file__}\\n")
"""


@pytest.fixture(scope="module")
def link(tmp_path_factory, rehearsal_app):
    with launched(tmp_path_factory.mktemp("launched") / "home", rehearsal_app) as started:
        yield started


@pytest.fixture(scope="module")
def nodes(link):
    with link.supernode(0, 2) as first, link.supernode(1, 2) as second:
        yield first, second


def test_clients_are_forked_and_run_the_code_that_the_run_brings(link, nodes, tmp_path):
    app = copy_app(tmp_path / "app")
    with (app / "client_app.py").open("a") as code:
        code.write(WITNESS)
    outcome = link.run(f"{SMALL} num-server-rounds=2", app=app)
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("clients") == ["2", "2"]
    lines = (link.home / "witness.txt").read_text().split("\n")[:-1]
    parents, files = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert len(lines) == 6  # two nodes are asked who they are, and train twice
    assert all(file.startswith(str(link.home / "apps")) for file in files)
    assert len(set(parents)) == 2  # one process at each node
    assert all(b"forkserver" in command_line(int(parent)) for parent in parents)


def test_a_client_that_dies_costs_one_update_and_the_next_one_is_forked(link, nodes):
    outcome = link.run(f"{SMALL} num-server-rounds=3 round-timeout=60.0", script={"1@2": "die"})
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("failures") == ["0", "1", "0"]


def test_a_database_that_is_locked_for_longer_than_flower_waits_ends_nothing(link, nodes):
    """With Flower's own five seconds, the SuperExec's next question is answered with 500."""
    with closing(sqlite3.connect(link.home / "state.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(8)
        database.execute("ROLLBACK")
    outcome = link.run(f"{SMALL} num-server-rounds=1")
    assert outcome.status == "finished:completed", outcome.details
    assert link.process.poll() is None
    assert "database is locked" not in link.said()


def test_a_killed_superlink_comes_back_with_its_nodes_and_works(tmp_path, rehearsal_app):
    """What messages held is lost with it; the nodes go on, under the ids that they had."""
    with (
        launched(tmp_path / "home", rehearsal_app) as link,
        link.supernode(0, 2) as first,
        link.supernode(1, 2) as second,
    ):
        lost = link.submit(f"{SMALL} num-server-rounds=3")
        link.await_begin(lost, "1@2")
        before = set(ids(link))
        link.kill(link.process)
        link.start()
        outcome = link.run(f"{SMALL} num-server-rounds=2 min-nodes=2")
        assert outcome.status == "finished:completed", outcome.details
        assert outcome.column("clients") == ["2", "2"]
        assert set(ids(link)) == before
        assert first.poll() is None
        assert second.poll() is None


def ids(link):
    """Ask for the ids of the nodes that are online."""
    rows = json.loads(link.flwr("supernode", "list", "test", "--format", "json").stdout)["nodes"]
    return [row["node-id"] for row in rows if row["status"] == "online"]


@pytest.mark.parametrize("which", ["supernode", "superlink"])
def test_without_its_superexec_a_process_ends_so_that_systemd_starts_both(
    tmp_path, rehearsal_app, which
):
    with launched(tmp_path / "home", rehearsal_app) as link, link.supernode(0, 1) as node:
        process = {"supernode": node, "superlink": link.process}[which]
        os.kill(superexec_of(process), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "the SuperExec has ended with -9, so this process ends" in link.said()
