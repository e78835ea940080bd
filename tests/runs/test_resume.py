"""A resumed run, as a user meets it; equality for each method is a contract test."""

import json
import logging

import numpy as np
import pytest
from fake_grid import node_id
from faults import edited, silent
from helpers import identical, messages_of, read_csv, read_json, serve
from run_folders import resuming
from safetensors.torch import load_file

from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError
from fedadb_app.runs.checkpoint import (
    Checkpoint,
)

TABLES = ("rounds.csv", "class_accuracy.csv", "diagnostics.csv", "metrics.csv")


@pytest.fixture
def values(values):
    return {**values, "num-server-rounds": 5, "checkpoint-every": 2, "batch-size": 64}


@pytest.fixture
def runs(values, tmp_path):
    return tmp_path / "runs"


def content(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


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


def test_other_images_with_the_same_labels(values, runs, tmp_path):
    """One pixel of one image: the parts and all shapes are the same, the digest is not."""
    with np.load(values["dataset"]) as archive:
        arrays = dict(archive)
    values["dataset"] = str(tmp_path / "data.npz")
    np.savez(values["dataset"], **arrays)
    serve(values, crash_in=4)
    changed = arrays["train_images"].copy()
    changed[7, 3, 3] ^= 1
    for images, refused in ((changed, True), (arrays["train_images"], False)):
        np.savez(values["dataset"], **{**arrays, "train_images": images})
        open_dataset.cache_clear()
        if refused:
            with pytest.raises(ConfigError, match=r'the images of dataset=".*" are not those of'):
                serve(resuming(values, **{"run-name": "other"}), run_id=8)
        else:  # put back, it goes on
            serve(resuming(values), run_id=9)
    assert read_json(runs / "other" / "summary.json")["status"] == "failed"
    assert read_json(runs / "next" / "summary.json")["status"] == "completed"


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
