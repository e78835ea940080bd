"""A run's folder, opened for read-outs."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers import identical, serve
from safetensors.torch import load_file

from fedadb_app.analysis.open_run import open_run
from fedadb_app.errors import CheckpointError, DataError, FedADBError
from fedadb_app.runs.checkpoint import Checkpoint
from fedadb_app.runs.reader import read_configuration


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


FILES_OF_ROUND_4 = ("model.safetensors", "snapshots/round0004/model.safetensors")


@pytest.mark.parametrize(("damaged", "intact"), [FILES_OF_ROUND_4, FILES_OF_ROUND_4[::-1]])
def test_of_two_files_of_one_model_one_is_enough(fedadb, tmp_path, damaged, intact):
    serve({**fedadb, "num-server-rounds": 4, "snapshot-every": 2})
    folder = tmp_path / "runs" / "run"
    (folder / damaged).write_bytes(b"")
    found = open_run(folder).model(4).state_dict()
    assert identical(found, load_file(folder / intact))


def test_a_damaged_checkpoint_leaves_other_models_as_they_are(fedadb, tmp_path):
    serve({**fedadb, "checkpoint-every": 3, "snapshot-every": 2}, crash_in=5)
    folder = tmp_path / "runs" / "run"
    assert list(open_run(folder).kept) == [2, 3, 4]
    Checkpoint.path(folder).write_bytes(b"")
    assert open_run(folder).chosen(None) == 4  # model.safetensors is of the last round
    assert open_run(folder).chosen(2) == 2

    (folder / "model.safetensors").unlink()
    assert open_run(folder).chosen(4) == 4
    for server_round in (None, 3):  # which the checkpoint may be of
        with pytest.raises(CheckpointError, match="damaged"):
            open_run(folder).chosen(server_round)
    shutil.rmtree(folder / "snapshots")
    with pytest.raises(CheckpointError, match="damaged"):
        open_run(folder).chosen(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "of which round it is cannot be told, because rounds.csv is not there"),
        ("round,accuracy\n1,10.00\n", "or cut off"),
        ("round,accuracy\n1,10.00,9\n2,11.00\n", "rounds.csv cannot be read"),
    ],
)
def test_only_the_final_model_needs_the_rounds(fedadb, tmp_path, text, said):
    serve({**fedadb, "snapshot-every": 2})
    folder = tmp_path / "runs" / "run"
    (folder / "rounds.csv").unlink()
    if text is not None:
        (folder / "rounds.csv").write_text(text)
    run = open_run(folder)
    assert run.chosen(2) == 2
    for server_round in (None, 5):
        with pytest.raises(DataError, match=said):
            run.chosen(server_round)


# --- another machine ------------------------------------------------------------------------


def test_the_device_is_the_runs_or_the_best_that_is_here(values, tmp_path, monkeypatch):
    serve(values)
    folder = tmp_path / "runs" / "run"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert open_run(folder).device == torch.device("cpu")
    text = (folder / "config.toml").read_text()
    for named, chosen in (("cuda:1", "cuda:1"), ("cuda:2", "cuda"), ("auto", "cuda")):
        (folder / "config.toml").write_text(text.replace('device = "cpu"', f'device = "{named}"'))
        assert open_run(folder).device == torch.device(chosen)


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        ("pathmnist", "pathmnist"),
        ("/there/scans.npz", "/here/scans.npz"),
        ("~/scans", "/here/scans"),
    ],
)
def test_the_data_set_lies_elsewhere_now(values, tmp_path, dataset, found):
    serve(values)
    path = tmp_path / "runs" / "run" / "config.toml"
    path.write_text(path.read_text().replace(values["dataset"], dataset))
    config = open_run(path.parent, Path("/here")).config
    assert (config.dataset, config.data_dir) == (found, "/here")
    assert open_run(path.parent).config.dataset == dataset


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
    with pytest.raises(FedADBError, match=r"model\.safetensors cannot be read"):
        run.model(run.chosen(None))


def test_another_model(values, tmp_path):
    serve({**values, "model": "lenet"})
    folder = tmp_path / "runs" / "run"
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('"lenet"', '"cnn"'))
    run = open_run(folder)
    with pytest.raises(DataError, match=r"another one than config\.toml"):
        run.model(run.chosen(None))
