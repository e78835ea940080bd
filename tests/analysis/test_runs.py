"""A run's folder, opened for read-outs."""

import pytest
from helpers import identical, serve
from safetensors.torch import load_file

from fedadb_app.analysis.runs import read_configuration
from fedadb_app.cli.reading import open_run
from fedadb_app.errors import DataError, FedADBError


@pytest.fixture
def fedadb(values):
    return {**values, "strategy": "fedadb", "num-server-rounds": 5, "fedadb.anchor-steps": 3}


def test_the_global_model_is_kept_every_n_rounds_and_at_the_end(fedadb, tmp_path):
    serve({**fedadb, "snapshot-every": 2})
    serve({**fedadb, "num-server-rounds": 4, "run-name": "four", "fedadb.beta": "0.5"})
    run = open_run(tmp_path / "runs" / "run")
    assert list(run.kept) == [2, 4, 5]
    assert run.chosen(None) == 5
    final = load_file(run.folder / "model.safetensors")
    assert identical(run.model(5).state_dict(), final)
    assert not identical(run.model(4).state_dict(), final)
    assert not run.model(4).training


def test_a_snapshot_is_the_model_that_a_shorter_run_ends_with(values, tmp_path):
    values = {**values, "num-server-rounds": 3}
    serve({**values, "snapshot-every": 2})
    serve({**values, "num-server-rounds": 2, "run-name": "two"})
    expected = load_file(tmp_path / "runs" / "two" / "model.safetensors")
    assert identical(open_run(tmp_path / "runs" / "run").model(2).state_dict(), expected)


def test_anchors_made_again_are_those_that_were_sent(fedadb, tmp_path):
    """The last anchors, which the folder keeps, were made of the model after the round before."""
    serve({**fedadb, "snapshot-every": 1})
    run = open_run(tmp_path / "runs" / "run")
    sent = load_file(run.folder / "anchors.safetensors")
    again = run.anchors(run.model(4), 4)
    assert identical(
        {"images": again.images, "labels": again.labels, "confidences": again.confidences}, sent
    )


def test_a_crashed_run_has_its_checkpoint(fedadb, tmp_path):
    serve({**fedadb, "checkpoint-every": 2}, crash_in=5)
    (tmp_path / "runs" / "run" / "model.safetensors").unlink()
    assert list(open_run(tmp_path / "runs" / "run").kept) == [4]


# --- what a user may get wrong --------------------------------------------------------------


def test_no_run(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        read_configuration(tmp_path)


def test_a_damaged_configuration(tmp_path):
    (tmp_path / "config.toml").write_text("strategy = ")
    with pytest.raises(DataError, match=r"config\.toml is damaged"):
        read_configuration(tmp_path)


def test_a_run_that_keeps_no_model(values, tmp_path):
    serve(values)
    folder = tmp_path / "runs" / "run"
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"keeps no global model yet.*snapshot-every"):
        open_run(folder).chosen(None)


def test_a_round_that_is_not_kept(values, tmp_path):
    serve({**values, "num-server-rounds": 3, "snapshot-every": 2})
    with pytest.raises(DataError, match="no global model of round 1, only of 2, 3"):
        open_run(tmp_path / "runs" / "run").chosen(1)


def test_a_method_without_anchors(values, tmp_path):
    serve({**values, "strategy": "fedavg"})
    run = open_run(tmp_path / "runs" / "run")
    with pytest.raises(DataError, match=r'made no anchors \(strategy="fedavg"'):
        run.anchors(run.model(run.chosen(None)), 1)


def test_a_run_without_anchors_is_not_given_any(fedadb, tmp_path):
    serve({**fedadb, "fedadb.use-anchors": False})
    run = open_run(tmp_path / "runs" / "run")
    with pytest.raises(DataError, match="made no anchors"):
        run.anchors(run.model(5), 5)


@pytest.mark.parametrize("content", [b"", b"\0" * 100])
def test_a_damaged_model(values, tmp_path, content):
    serve(values)
    run = open_run(tmp_path / "runs" / "run")
    (run.folder / "model.safetensors").write_bytes(content)
    with pytest.raises(FedADBError, match="damaged"):
        run.model(run.chosen(None))


def test_another_model(values, tmp_path):
    serve({**values, "model": "lenet"})
    folder = tmp_path / "runs" / "run"
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('"lenet"', '"cnn"'))
    run = open_run(folder)
    with pytest.raises(DataError, match=r"another one than config\.toml"):
        run.model(run.chosen(None))
