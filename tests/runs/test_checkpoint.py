"""Checkpoint and resume, as a user meets them; equality for each method is a contract test."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, node_id, server_context, simulated_nodes
from faults import edited, first, silent
from helpers import REPOSITORY, identical, messages_of, read_csv, read_json, serve
from safetensors.torch import load_file

import server_app
from fedadb_app.config import RunConfig
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import CheckpointError, ConfigError, TrainingError
from fedadb_app.runs import atomic
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

TABLES = ("rounds.csv", "class_accuracy.csv", "diagnostics.csv")


@pytest.fixture
def values(values):
    return {**values, "num-server-rounds": 5, "checkpoint-every": 2, "batch-size": 64}


@pytest.fixture
def runs(values, tmp_path):
    return tmp_path / "runs"


def resuming(values, run: str = "run", **changes):
    """The values of a run that resumes another one."""
    folder = f"{values['output-dir']}/{run}"
    return {**values, "run-name": "next", "resume-from": folder, **changes}


def content(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


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


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_the_last_one_stays(
    values, runs, monkeypatch
):
    fsync, calls = atomic.os.fsync, []

    def full_later(number):
        calls.append(number)
        if len(calls) > 2:  # a file and its folder: the checkpoint of round 2
            raise OSError(28, "No space left on device")
        fsync(number)

    monkeypatch.setattr(atomic.os, "fsync", full_later)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
        serve(values)
    assert read_json(runs / "run" / "summary.json")["status"] == "failed"
    assert Checkpoint.read(runs / "run").facts.round == 2
    assert len(read_csv(runs / "run" / "rounds.csv")) == 4


# --- resuming -------------------------------------------------------------------------------


def test_the_new_folder_begins_with_the_old_rows_and_the_old_folder_stays(values, runs, caplog):
    serve(values, crash_in=4)  # round 3 is finished, the checkpoint is that of round 2
    old = content(runs / "run")
    with caplog.at_level(logging.INFO):
        grid = serve(resuming(values), run_id=8)
    assert content(runs / "run") == old
    for name in TABLES:
        before = (runs / "run" / name).read_text().splitlines()
        after = (runs / "next" / name).read_text().splitlines()
        kept = [line for line in before if line.split(",")[0] in ("round", "1", "2")]
        assert after[: len(kept)] == kept
        assert {line.split(",")[0] for line in after[len(kept) :]} == {"3", "4", "5"}
    asked = [m.content["config"]["round"] for m in grid.trained()]
    assert asked == [3, 3, 4, 4, 5, 5]
    assert {m.content["config"]["rounds"] for m in grid.trained()} == {5}
    rates = [float(row["learning_rate"]) for row in read_csv(runs / "next" / "rounds.csv")]
    assert rates == pytest.approx([0.01 * 0.99**t for t in range(5)], rel=1e-5)
    found = [m for m in messages_of(caplog.records, "INFO") if "going on after round 2" in m]
    assert found == [f'resume-from="{runs}/run": going on after round 2 of that run']


def test_the_summary_is_about_the_whole(values, runs):
    serve(values, crash_in=4)
    serve(resuming(values), run_id=8)
    found = read_json(runs / "next" / "summary.json")
    accuracies = [float(row["accuracy"]) for row in read_csv(runs / "next" / "rounds.csv")]
    assert found["status"] == "completed"
    assert (found["rounds"], found["resumed_round"]) == (5, 2)
    assert found["resumed_from"] == f"{runs}/run"
    assert found["best5_accuracy"] == found["last50_accuracy"]
    assert found["best5_accuracy"] == round(sum(accuracies) / 5, 2)
    assert found["final_accuracy"] == accuracies[-1]
    assert found["seconds"] > Checkpoint.read(runs / "run").facts.seconds > 0
    assert "resumed_from" not in read_json(runs / "run" / "summary.json")


def test_a_resumed_run_that_crashed_at_once_can_be_resumed(values, runs):
    serve(values, crash_in=4)
    serve(resuming(values), run_id=8, crash_in=3)
    assert read_json(runs / "next" / "summary.json")["rounds"] == 2
    serve(resuming(values, "next", **{"run-name": "last"}), run_id=9)
    serve({**values, "run-name": "whole"})
    models = [load_file(runs / name / "model.safetensors") for name in ("last", "whole")]
    assert identical(*models)


def test_a_run_killed_after_its_last_checkpoint_is_completed(values, runs):
    serve(values)
    summary = runs / "run" / "summary.json"
    summary.write_text(json.dumps({**read_json(summary), "status": "running"}))
    (runs / "run" / "model.safetensors").rename(runs / "model.safetensors")
    grid = serve(resuming(values), run_id=8)
    assert grid.trained() == []
    assert read_json(runs / "next" / "summary.json")["status"] == "completed"
    models = [
        load_file(path)
        for path in (runs / "model.safetensors", runs / "next" / "model.safetensors")
    ]
    assert identical(*models)


def test_the_privacy_spent_before_is_not_forgotten(values, runs):
    private = {**values, "privacy": "central", "clipping-norm": 0.01, "fraction-train": 0.5}
    serve(private, crash_in=4)
    serve(resuming(private), run_id=8)
    serve({**private, "run-name": "whole"}, run_id=9)
    spent = [
        [row["epsilon"] for row in read_csv(runs / n / "rounds.csv")] for n in ("whole", "next")
    ]
    assert spent[0] == spent[1]
    assert float(spent[0][4]) > float(spent[0][1]) > 0


def test_a_node_is_told_the_whole_lineage(values, runs):
    serve(values, run_id=1, crash_in=4)
    serve(resuming(values), run_id=2, crash_in=5)
    grid = serve(resuming(values, "next", **{"run-name": "last"}), run_id=3)
    sent = grid.trained()[0].content["config"]
    assert (sent["ancestors"], sent["last-rounds"]) == ([1, 2], [2, 4])


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
    written({})
    value = changed(key, default)
    assert value != default
    if key in MAY_DIFFER:
        assert resumed(tmp_path, **{key: value}).facts.round == 3
        return
    both = f"{key} was {json.dumps(default)} in that run and is {json.dumps(value)} in this one"
    with pytest.raises(ConfigError, match=re.escape(f'resume-from="{tmp_path}/old": {both}')):
        resumed(tmp_path, **{key: value})


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


def test_other_clients(values, runs):
    serve(values, crash_in=4)
    with pytest.raises(ConfigError, match=r'resume-from=".*/run": the data, or how the clients'):
        serve(resuming(values), clients=3, run_id=8)
    assert read_json(runs / "next" / "summary.json")["status"] == "failed"


def test_other_data_in_the_same_place(values, runs, tmp_path):
    """As many images, so the i.i.d. parts are the same, but five classes instead of four."""
    with np.load(values["dataset"]) as archive:
        arrays = dict(archive)
    values["dataset"] = str(tmp_path / "data.npz")
    np.savez(values["dataset"], **arrays)
    serve(values, crash_in=4)
    arrays["train_labels"][0] = 4
    np.savez(values["dataset"], **arrays)
    open_dataset.cache_clear()  # a resumed run is another process
    with pytest.raises(ConfigError, match=r'resume-from=".*/run": the data, or how the clients'):
        serve(resuming(values), run_id=8)


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


# --- clients that keep a state --------------------------------------------------------------


def lost(folder) -> list[str]:
    rows = read_csv(folder / "diagnostics.csv")
    return [row["value"] for row in rows if row["name"] == "client_states_lost"]


def test_states_in_memory_are_lost_with_the_run_and_that_is_said(values, runs, caplog):
    values["strategy"] = "feddyn"
    serve(values, crash_in=4)
    assert not [m for m in messages_of(caplog.records, "WARNING") if "state" in m]
    caplog.clear()
    serve(resuming(values), run_id=8)
    warned = [m for m in messages_of(caplog.records, "WARNING") if "state" in m]
    assert len(warned) == 3
    assert "2 clients kept a state between rounds in that run, which is lost" in warned[0]
    assert "round 3: client 0 has lost the state it kept in round 2" in warned[1]
    assert "round 3: client 1 has lost the state it kept in round 2" in warned[2]
    assert lost(runs / "next") == ["0", "0", "2", "0", "0"]


def test_states_on_disk_are_not_lost(values, runs, caplog, tmp_path):
    values |= {"strategy": "feddyn", "client-state-dir": str(tmp_path / "states")}
    grid = serve(values, crash_in=4)
    assert all(not grid.context(node).state for node in grid.nodes)  # one place only
    serve(resuming(values), run_id=8)
    assert not [m for m in messages_of(caplog.records, "WARNING") if "state" in m]
    assert lost(runs / "next") == ["0"] * 5


def test_a_folder_that_only_the_resumed_run_has_cannot_help(values, runs, caplog, tmp_path):
    values["strategy"] = "feddyn"
    serve(values, crash_in=4)
    serve(resuming(values, **{"client-state-dir": str(tmp_path / "states")}), run_id=8)
    assert "client-state-dir is not set in both runs" in caplog.text
    assert lost(runs / "next") == ["0", "0", "2", "0", "0"]


def test_methods_without_a_state_say_nothing_and_write_nothing(values, runs, caplog, tmp_path):
    values["client-state-dir"] = str(tmp_path / "states")
    serve(values, crash_in=4)
    serve(resuming(values, **{"client-state-dir": ""}), run_id=8)
    assert not (tmp_path / "states").exists()
    assert lost(runs / "next") == []
    assert not [m for m in messages_of(caplog.records, "WARNING") if "state" in m]


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_node_that_restarts_during_a_run_finds_its_state_on_disk_or_is_named(
    federation, caplog, tmp_path, on_disk
):
    whole, restarted = (
        federation(
            strategy="feddyn",
            **{"num-server-rounds": 4, "run-name": name},
            **({"client-state-dir": str(tmp_path / name)} if on_disk else {}),
        )
        for name in ("whole", "restarted")
    )
    restarted.grid.before_train = lambda t: t == 3 and restarted.grid.contexts.pop(node_id(1))
    whole.run()
    restarted.run()
    models = [f.strategy.global_model for f in (whole, restarted)]
    warned = [m for m in messages_of(caplog.records, "WARNING") if "state" in m]
    if on_disk:
        assert identical(*models)
        assert warned == []
        assert lost(restarted.folder.path) == ["0"] * 4
    else:
        assert not identical(*models)
        (warning,) = warned
        assert warning.startswith("round 3: client 1 has lost the state it kept in round 2")
        assert "went on without one" in warning
        assert lost(restarted.folder.path) == ["0", "0", "1", "0"]


def test_a_client_whose_reply_was_lost_has_lost_nothing(federation):
    """Its state is newer than the server knows, as it trained for nothing."""
    built = federation(strategy="feddyn", **{"num-server-rounds": 4, "min-success-fraction": 0.1})
    faults = {2: {node_id(1): silent}, 3: {}}
    built.grid.before_train = lambda t: setattr(built.grid, "faults", faults.get(t, {}))
    built.run()
    assert lost(built.folder.path) == ["0"] * 4


@pytest.mark.parametrize("said", [1.5, [1], -1])
def test_a_node_that_lies_about_its_state_spoils_nothing(federation, said):
    built = federation(strategy="feddyn", **{"num-server-rounds": 2})
    built.fault(1, edited(metrics=lambda m: {**m, "state-round": said}))
    built.run()
    assert [row["clients"] for row in built.rows] == ["2", "2"]
    assert lost(built.folder.path) == ["0", "0"]
