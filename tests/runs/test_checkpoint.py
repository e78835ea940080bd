"""The checkpoint: when it is written, what it holds, and which one is refused."""

import json
import re

import pytest
import torch
from fake_grid import FakeGrid, node_id, server_context, simulated_nodes
from faults import edited, first
from helpers import REPOSITORY, identical, read_csv, read_json, serve
from run_folders import resuming
from safetensors.torch import load_file

import server_app
from fedadb_app.config import RunConfig
from fedadb_app.errors import CheckpointError, ConfigError, StorageError, TrainingError
from fedadb_app.runs import atomic, checkpoint
from fedadb_app.runs.atomic import write_tensors
from fedadb_app.runs.checkpoint import (
    MAY_DIFFER,
    Ancestor,
    Checkpoint,
    Facts,
    checkpoint_to_resume,
    effective_values,
)
from strategies.registry import METHODS, read_run_config

TABLES = ("rounds.csv", "class_accuracy.csv", "diagnostics.csv", "metrics.csv")


@pytest.fixture
def values(values):
    return {**values, "num-server-rounds": 5, "checkpoint-every": 2, "batch-size": 64}


@pytest.fixture
def runs(values, tmp_path):
    return tmp_path / "runs"


# --- writing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "at"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5]), (0, [])]
)
def test_a_checkpoint_comes_every_n_rounds_and_at_the_last(values, runs, monkeypatch, every, at):
    rounds = []
    write = Checkpoint.write
    monkeypatch.setattr(
        Checkpoint, "write", lambda self, path: rounds.append(self.facts.round) or write(self, path)
    )
    serve({**values, "checkpoint-every": every})
    assert rounds == at
    assert (runs / "run" / "checkpoint").exists() == bool(at)


def test_it_holds_the_run_as_it_was(values, runs):
    serve(values, run_id=2**64 - 1, crash_in=5)
    serve({**values, "num-server-rounds": 4, "run-name": "four", "learning-rate": 0.01})
    found = Checkpoint.read(runs / "run")
    assert found.facts.round == 4
    assert found.facts.tables == {name: (runs / "run" / name).read_text() for name in TABLES}
    assert identical(found.model, load_file(runs / "four" / "model.safetensors"))
    assert found.state == {}
    assert found.facts.partition == read_json(runs / "run" / "partition.json")["hash"]
    assert found.lineage == (Ancestor(2**64 - 1, 4),)


def test_a_round_that_failed_is_in_no_checkpoint(values, runs):
    grid_values = {**values, "checkpoint-every": 1, "min-success-fraction": 1.0}
    grid = FakeGrid(grid_values, simulated_nodes(2))
    nan = edited(first(lambda a: a * float("nan")))
    grid.before_train = lambda t: t == 3 and grid.faults.update({node_id(0): nan})
    with pytest.raises(TrainingError, match="round 3"):
        server_app.app(grid, server_context(grid_values))
    assert read_csv(runs / "run" / "rounds.csv")[-1]["round"] == "3"
    assert Checkpoint.read(runs / "run").facts.round == 2

    serve(resuming(grid_values, **{"min-success-fraction": 0.5}), run_id=8)
    serve({**grid_values, "run-name": "whole"}, run_id=9)
    rows = [read_csv(runs / name / "rounds.csv") for name in ("whole", "next")]
    assert [r["accuracy"] for r in rows[0]] == [r["accuracy"] for r in rows[1]]


def disk_is_full(path):
    raise OSError(28, "No space left on device")


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_the_last_one_stays(
    values, runs, monkeypatch
):
    def full_later(path, tensors, text):
        with monkeypatch.context() as patch:
            if Checkpoint.path(runs / "run").exists():  # that of round 2
                patch.setattr(atomic, "sync", disk_is_full)
            write_tensors(path, tensors, text)

    monkeypatch.setattr(checkpoint, "write_tensors", full_later)
    with pytest.raises(StorageError, match=r"cannot be written \(No space left on device\)"):
        serve(values)
    assert read_json(runs / "run" / "summary.json")["status"] == "failed"
    assert Checkpoint.read(runs / "run").facts.round == 2
    assert len(read_csv(runs / "run" / "rounds.csv")) == 4


# --- refusals -------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path):
    """A checkpoint of a run of the given values, without the run."""

    def write(values):
        config, _, own = read_run_config(values)
        facts = Facts(
            round=3,
            run_id=1,
            ancestors=(),
            config=effective_values(config, own),
            partition="",
            state_rounds={5: 2},
            rounds_drawn={5: 2},
            nodes={},
            tables={},
            seconds=1.5,
        )
        Checkpoint(facts, {"w": torch.ones(2)}, {"m": torch.zeros(1)}).write(tmp_path / "old")
        return facts

    return write


def resumed(tmp_path, **values):
    config, _, own = read_run_config(
        {
            "resume-from": str(tmp_path / "old"),
            **{k.replace("_", "-"): v for k, v in values.items()},
        }
    )
    return checkpoint_to_resume(config, own)


def test_without_the_key_there_is_nothing_to_resume():
    config, _, own = read_run_config({})
    assert checkpoint_to_resume(config, own) is None


def test_what_was_written_is_read(written, tmp_path):
    facts = written({})
    found = resumed(tmp_path)
    assert found.facts == facts
    assert identical(found.model, {"w": torch.ones(2)})
    assert identical(found.state, {"m": torch.zeros(1)})


OTHER_TEXTS = {
    "strategy": "fedavg",
    "dataset": "pathmnist",
    "partition": "iid",
    "model": "lenet",
    "norm": "group",
    "device": "cpu",
    "precision": "bf16",
    "evaluate": "none",
    "run-name": "other",
    "data-dir": "/elsewhere",
    "output-dir": "/elsewhere",
    "client-state-dir": "/elsewhere",
    "privacy": "central",
    "resize": "crop",
    "intensity": "0,4095",
    "frames": "each",
    "transparency": "refuse",
    "ignore": "*.xml",
    "robust": "median",
    "weights": "/elsewhere/weights.safetensors",
    "optimizer": "adamw",
    "patient-pattern": "{patient}_*",
    "validation": "0.1",
    "select-by": "val-accuracy",
    "must-reach": "9:50",
}

# What a key is of no use without.
NEEDED = {
    "select-by": {"validation": "0.1"},
    "patience": {"validation": "0.1", "select-by": "val-accuracy"},
    "must-reach": {"validation": "0.1", "select-by": "val-accuracy"},
    "personalise-epochs": {"evaluate": "clients"},
}


def changed(key: str, default):
    """Another value that the key takes."""
    if isinstance(default, str):
        return OTHER_TEXTS[key]
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else default / 2 or 0.5


@pytest.mark.parametrize(
    "key", sorted(RunConfig.defaults().keys() - {"resume-from", "classes", "image-shape"})
)
def test_a_key_may_differ_or_is_refused_with_both_values(written, tmp_path, key):
    default = RunConfig.defaults()[key]
    needed = NEEDED.get(key, {})
    written(needed)
    value = changed(key, default)
    assert value != default
    if key in MAY_DIFFER:
        assert resumed(tmp_path, **{key: value}).facts.round == 3
        return
    both = f"{key} was {json.dumps(default)} in that run and is {json.dumps(value)} in this one"
    with pytest.raises(ConfigError, match=re.escape(f'resume-from="{tmp_path}/old": {both}')):
        resumed(tmp_path, **needed, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"), [("classes", "benign,malignant"), ("image-shape", "1x32x32")]
)
def test_what_nodes_own_data_have_in_common_must_be_repeated(written, tmp_path, key, value):
    own = {"dataset": "nodes", "classes": "a,b", "image-shape": "1x28x28", "evaluate": "clients"}
    written(own)
    both = f'{key} was "{own[key]}" in that run and is "{value}" in this one'
    with pytest.raises(ConfigError, match=re.escape(both)):
        resumed(tmp_path, **{**own, key: value})


@pytest.mark.parametrize("name", list(METHODS))
def test_a_methods_own_values_must_be_repeated(written, tmp_path, name):
    for key, default in METHODS[name].params.defaults().items():
        if isinstance(default, str | bool):
            continue
        value = changed(key, default)
        written({"strategy": name})
        with pytest.raises(ConfigError, match=f"{name}.{key} was {json.dumps(default)} in that"):
            resumed(tmp_path, strategy=name, **{f"{name}.{key}": value})


def test_another_method_is_refused_as_such(written, tmp_path):
    written({"strategy": "fedexp"})
    with pytest.raises(ConfigError, match='strategy was "fedexp" in that run and is "fedadb"'):
        resumed(tmp_path)


def test_the_keys_that_may_differ_are_those_on_the_page():
    page = (REPOSITORY / "docs" / "run.md").read_text()
    sentence = re.search(r"Only these may differ:(.*?)\.", page, re.DOTALL).group(1)
    assert set(re.findall(r"`([a-z-]+)`", sentence)) == MAY_DIFFER <= RunConfig.defaults().keys()


@pytest.mark.parametrize("make", ["nothing", "folder", "file", "no checkpoint"])
def test_a_folder_without_checkpoint(values, tmp_path, make):
    if make == "folder":
        (tmp_path / "old").mkdir()
    if make == "file":
        (tmp_path / "old").touch()
    if make == "no checkpoint":
        serve({**values, "checkpoint-every": 0, "run-name": "old", "output-dir": str(tmp_path)})
    with pytest.raises(ConfigError, match=r'resume-from=".*/old": no checkpoint lies there; name'):
        resumed(tmp_path)


def test_a_completed_run(values, runs):
    serve(values)
    with pytest.raises(ConfigError, match=r'resume-from=".*/run": that run is complete'):
        serve(resuming(values))
    assert not (runs / "next").exists()


def test_a_relative_path():
    with pytest.raises(ConfigError, match=r'resume-from="runs/a" must be an absolute path'):
        read_run_config({"resume-from": "runs/a"})
    with pytest.raises(ConfigError, match=r'client-state-dir="states" must be an absolute path'):
        read_run_config({"client-state-dir": "states"})


def test_a_damaged_checkpoint(values, runs):
    serve(values, crash_in=4)
    path = Checkpoint.path(runs / "run")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"run/checkpoint/checkpoint\.safetensors is damaged"):
        serve(resuming(values))
    assert not (runs / "next").exists()


def test_a_checkpoint_of_another_version(written, tmp_path):
    facts = json.loads(written({}).model_dump_json())
    del facts["seconds"]
    write_tensors(Checkpoint.path(tmp_path / "old"), {}, json.dumps(facts))
    with pytest.raises(CheckpointError, match="is no checkpoint of this version of the app"):
        resumed(tmp_path)
