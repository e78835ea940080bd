"""Whole runs in Flower's simulation, started as a user starts them."""

import csv
import tomllib

import pytest
from flower.runs import in_one_process

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]

SMALL = "local-epochs=1 fedadb.anchor-steps=5"
RESULTS = {
    "config.toml",
    "partition.json",
    "rounds.csv",
    "class_accuracy.csv",
    "summary.json",
    "model.safetensors",
    "anchors.safetensors",
}


def workers(count):
    """A federation of four clients that `count` Ray workers share."""
    return f"num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus={count}"


# --- the defaults ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare_run(simulation):
    """All defaults but the number of rounds."""
    return simulation.run("num-server-rounds=2")


def test_a_bare_run_completes_and_leaves_everything(bare_run):
    assert bare_run.status == "finished:completed", bare_run.details
    present = {path.name for path in bare_run.folder.iterdir()}
    assert present >= RESULTS
    assert not [name for name in present if name.endswith(".tmp")]
    summary = bare_run.summary()
    assert summary["status"] == "completed"
    assert (summary["strategy"], summary["clients"], summary["rounds"]) == ("fedadb", 2, 2)
    rounds = bare_run.rounds()
    assert [row["round"] for row in rounds] == ["1", "2"]
    assert [(row["clients"], row["failures"]) for row in rounds] == [("2", "0")] * 2
    assert float(rounds[-1]["accuracy"]) == summary["final_accuracy"] > 15
    assert len(bare_run.partition()["clients"]) == 2
    with bare_run.file("class_accuracy.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["round", *map(str, range(10))]
    assert len(rows) == 2
    written = tomllib.loads(bare_run.file("config.toml").read_text())
    assert (written["num-server-rounds"], written["fedadb"]["anchor-steps"]) == (2, 100)


def test_a_simulation_computes_what_one_process_computes(bare_run, bare_twin):
    for column in ("round", "accuracy", "loss", "anchor_quality", "bytes_down", "bytes_up"):
        assert bare_run.column(column) == bare_twin.column(column)
    assert bare_run.partition() == bare_twin.partition()
    assert {path.name for path in bare_run.folder.iterdir()} == {
        path.name for path in bare_twin.folder.iterdir()
    }


def test_no_dependency_is_installed_for_a_run(bare_run, simulation):
    # The SuperLink runs `uv sync` before each run, here without a network (UV_OFFLINE).
    log = simulation.log(bare_run.run_id)
    assert "No additional application dependencies needed installation." in log
    assert not list(simulation.home.rglob("torch"))


def test_a_cluster_of_somebody_else_is_not_joined(bare_run, simulation):
    """The fixture names one, where `ray start` does, of which no run could get a CPU."""
    assert simulation.foreign_cluster.read_text() == "127.0.0.1:1"
    assert bare_run.status == "finished:completed", bare_run.details


def test_flower_itself_refuses_an_unknown_key(simulation):
    refused = simulation.flwr("run", str(simulation.app), "test", "--run-config", "learn-rate=0.1")
    assert refused.returncode != 0
    assert "Invalid run configuration" in refused.stdout + refused.stderr


# --- privacy --------------------------------------------------------------------------------


def test_a_run_with_local_privacy_completes_and_says_what_it_cost(simulation):
    """At the clients Flower's mod takes part; central privacy is the server's arithmetic alone."""
    values = 'privacy="local" noise-multiplier=0.01 clipping-norm=0.5 num-server-rounds=2'
    outcome = simulation.run(f"{SMALL} {values}")
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("failures") == ["0", "0"]
    first, second = map(float, outcome.column("epsilon"))
    assert 0 < first < second
    assert "LocalDpMod: parameters are clipped" in simulation.log(outcome.run_id)


# --- the same seed --------------------------------------------------------------------------


def test_a_seed_fixes_the_run_whatever_the_workers(simulation, rehearsal_app, tmp_path):
    """Two Ray workers that take whichever client comes next, and one process without Flower."""
    config = f"{SMALL} num-server-rounds=3 fraction-train=0.5 seed=7"
    one = in_one_process(config, 4, tmp_path)
    two = simulation.run(config, workers(2), rehearsal_app)
    assert two.status == "finished:completed", two.details
    assert two.column("clients") == ["2", "2", "2"]
    assert len(two.trained()) == 6
    assert all(one.column("anchor_quality"))
    for column in ("accuracy", "loss", "anchor_quality"):
        assert one.column(column) == two.column(column)
    for name in ("class_accuracy.csv", "diagnostics.csv", "model.safetensors"):
        assert one.file(name).read_bytes() == two.file(name).read_bytes()
    assert one.partition() == two.partition()


# --- clients that fail ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def failing(simulation, rehearsal_app):
    """Some clients fail, then one's process dies, then all fail."""
    script = {"1@1": "raise", "2@1": "nan", "3@1": "shape", "1@3": "die"}
    script |= {f"{client}@4": "raise" for client in range(4)}
    return simulation.run(
        f"{SMALL} num-server-rounds=5 min-success-fraction=0.25 round-timeout=300",
        workers(2),
        rehearsal_app,
        script,
    )


def test_a_run_goes_on_without_failing_clients_and_takes_them_back(simulation, failing):
    log = simulation.log(failing.run_id)
    assert failing.column("clients")[:2] == ["1", "4"]
    assert failing.column("failures")[:2] == ["3", "0"]
    assert "round 1: client 1 failed: the script says so" in log
    assert "round 1: client 2 failed: its model holds values that are not finite" in log
    assert "round 1: client 3 failed: tensor " in log
    # A worker process that dies is known at once, not after round-timeout; another takes its place.
    third = failing.rounds()[2]
    assert (third["clients"], third["failures"]) == ("3", "1")
    assert "round 3: client 1 failed: " in log
    assert "ActorDiedError" in log
    assert "no reply within round-timeout" not in log


def test_too_few_usable_updates_end_a_run_and_leave_its_rounds(failing):
    assert failing.status == "finished:failed"
    sentence = failing.summary()["reason"]
    assert sentence.startswith(
        "round 4: 0 of 4 clients gave a usable update, 1 needed (min-success-fraction=0.25); "
        "client 0: "
    )
    assert failing.details.endswith(sentence)
    assert failing.summary()["status"] == "failed"
    assert failing.column("round") == ["1", "2", "3", "4"]
    assert failing.column("failures")[3] == "4"
    assert [bool(cell) for cell in failing.column("accuracy")] == [True, True, True, False]
    assert {path.name for path in failing.folder.iterdir()} >= RESULTS


# --- stopping -------------------------------------------------------------------------------


def test_a_stopped_run_says_so_and_its_processes_end(simulation, rehearsal_app):
    run = simulation.submit(
        f"{SMALL} num-server-rounds=3",
        "num-supernodes=2 client-resources-num-cpus=1",
        rehearsal_app,
        {"1@2": "hang"},
    )
    simulation.await_begin(run, "1@2")
    assert simulation.flwr("stop", run.run_id, "test").returncode == 0
    # The SuperLink says so at once; the process learns it with its next heartbeat (20 s).
    outcome = simulation.wait(run)
    assert outcome.status == "finished:stopped"
    simulation.await_summary(run, "stopped")
    simulation.await_rest()
    summary = outcome.summary()
    assert summary["status"] == "stopped"
    assert summary["rounds"] == 1
    assert summary["reason"].startswith("ended from outside after round 1")
    assert outcome.column("round") == ["1"]
