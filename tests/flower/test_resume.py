"""Runs whose server processes are killed in mid-round, and the runs that go on from them."""

import pytest
from flower.runs import in_one_process

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]

FEDDYN = (
    'strategy="feddyn" local-epochs=1 num-server-rounds=5 checkpoint-every=2 '
    'run-name="run" client-state-dir="{states}"'
)
TWO_CLIENTS = "num-supernodes=2 client-resources-num-cpus=1"
HANGS_IN_ROUND_4 = {"1@4": "hang"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing interrupts, in one process."""
    config = FEDDYN.format(states=tmp_path_factory.mktemp("states"))
    return in_one_process(config, 2, tmp_path_factory.mktemp("whole"))


def assert_as_if_nothing_had_happened(resumed, whole, old) -> None:
    assert resumed.status == "finished:completed", resumed.details
    assert resumed.summary()["resumed_round"] == 2
    assert resumed.summary()["resumed_from"] == str(old)
    assert resumed.column("round") == ["1", "2", "3", "4", "5"]
    assert {key.split("@")[1] for key in resumed.trained()} == {"3", "4", "5"}
    for column in ("accuracy", "loss", "learning_rate", "clients", "failures"):
        assert resumed.column(column) == whole.column(column)
    for name in ("class_accuracy.csv", "diagnostics.csv", "model.safetensors", "partition.json"):
        assert resumed.file(name).read_bytes() == whole.file(name).read_bytes()


def test_a_killed_simulation_goes_on(simulation, rehearsal_app, whole, tmp_path):
    config = FEDDYN.format(states=tmp_path)
    run = simulation.submit(config, TWO_CLIENTS, rehearsal_app, HANGS_IN_ROUND_4)
    simulation.await_begin(run, "1@4")
    simulation.kill_runs()
    old = run.folder()
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    assert run.summary_status() == "running"
    resumed = simulation.run(f'{config} resume-from="{old}"', TWO_CLIENTS, rehearsal_app)
    assert_as_if_nothing_had_happened(resumed, whole, old)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_a_killed_superlink_is_started_again_and_the_run_goes_on(
    doomed_deployment, rehearsal_app, whole, tmp_path
):
    """The SuperNodes go on, under the ids that they had; what messages held is lost."""
    link, config = doomed_deployment, FEDDYN.format(states=tmp_path / "states")
    with link.supernode(0, 2) as first, link.supernode(1, 2) as second:
        run = link.submit(config, app=rehearsal_app, script=HANGS_IN_ROUND_4)
        link.await_begin(run, "1@4")
        before = link.online()
        link.kill(link.process)
        link.start()
        (run.output / "go").touch()
        old = run.folder()
        resumed = link.run(f'{config} min-nodes=2 resume-from="{old}"', app=rehearsal_app)
        assert_as_if_nothing_had_happened(resumed, whole, old)
        assert len(before) == 2
        assert link.online() == before
        assert first.poll() is None
        assert second.poll() is None
