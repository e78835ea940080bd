"""A simulation on a Ray cluster of two nodes, one of which knows nothing of the submitted bundle.

The nodes are processes of this machine. The second has on its path, as a machine where another
version is installed, a decoy of the app; the bundle's folder is taken away once the run has begun.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from flower.processes import Processes, wait_until
from flower.superlink import SuperLink
from ray.cluster_utils import Cluster

from fedadb_app.process import prepare_simulation

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A node of one CPU, and another that finds decoys on its path."""
    decoy = tmp_path / "installed"
    (decoy / "fedadb_app").mkdir(parents=True)
    for name in ("client_app.py", "fedadb_app/__init__.py"):
        (decoy / name).write_text('WHOSE = "decoy"\nraise ImportError("another version")\n')
    processes = Processes(home=tmp_path)  # for its short folder, where sockets can lie
    folder = str(processes._ray)
    processes.foreign_cluster.parent.mkdir()  # where Ray notes a cluster's address
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    two = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "temp_dir": folder})
    try:
        two.second = two.add_node(
            num_cpus=1, resources={"second": 1}, env_vars={"PYTHONPATH": str(decoy)}
        )
        yield two
    finally:
        ray.shutdown()
        two.shutdown()
        processes.stop()


def test_workers_run_the_submitted_code_where_the_bundle_is_not(
    cluster, tmp_path, monkeypatch
) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "fedadb_app").mkdir(parents=True)
    for name in ("client_app.py", "fedadb_app/__init__.py"):
        (bundle / name).write_text('WHOSE = "submitted"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/flwr-simulation"])
    prepare_simulation(bundle)
    shutil.rmtree(bundle)

    @ray.remote(num_cpus=1, resources={"second": 0.1})
    def whose() -> tuple[str, str, str]:
        import client_app
        import fedadb_app

        return client_app.WHOSE, fedadb_app.WHOSE, os.path.dirname(client_app.__file__)

    *found, folder = ray.get(whose.remote(), timeout=120)
    assert found == ["submitted", "submitted"]
    assert folder != str(bundle)


def test_a_machine_lost_in_mid_round_fails_its_clients_and_the_run_goes_on(
    cluster, tmp_path, rehearsal_app
) -> None:
    class OnCluster(SuperLink):
        def environment(self) -> dict[str, str]:
            return {**super().environment(), "RAY_ADDRESS": cluster.address}

    link = OnCluster(home=tmp_path / "link", app=rehearsal_app, simulation=True)
    link.start()
    try:
        values = "num-server-rounds=3 local-epochs=1 fedadb.anchor-steps=1"
        script = {f"{client}@2": "hang" for client in range(4)}
        run = link.submit(
            f"{values} min-success-fraction=0.25", "num-supernodes=4 client-resources-num-cpus=1",
            rehearsal_app, script,
        )  # fmt: skip
        wait_until(
            lambda: sum(run.has_begun(f"{client}@2") for client in range(4)) == 2,
            "no two clients of round 2 train side by side",
        )
        cluster.remove_node(cluster.second, allow_graceful=False)
        time.sleep(1)
        (run.output / "go").touch()
        outcome = link.wait(run)
        assert outcome.status == "finished:completed", outcome.details
        assert outcome.column("clients") == ["4", "3", "4"]
        assert outcome.column("failures") == ["0", "1", "0"]
        assert "round 2: client " in link.log(run.run_id)
    finally:
        link.stop()
