"""Which round validation chooses, what is kept of it, and what ends a run early."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid, server_context, simulated_nodes
from helpers import identical, messages_of, read_csv, read_json, serve
from run_folders import resuming
from safetensors.torch import load_file

import server_app
import strategies.evaluation
import strategies.outcome
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError
from fedadb_app.evaluation import Evaluation
from fedadb_app.runs.predictions import Predictions
from fedadb_app.runs.reader import read_files

LABELS = np.arange(8) % 4


@pytest.fixture
def values(values) -> dict[str, Any]:
    return {**values, "validation": "0.2", "select-by": "val-accuracy", "snapshot-every": 1}


@pytest.fixture
def runs(values, tmp_path):
    return tmp_path / "runs"


def evaluation(right: int) -> Evaluation:
    """Of eight images so many are given their class, all with certainty."""
    predicted = np.where(np.arange(8) < right, LABELS, (LABELS + 1) % 4)
    correct = np.bincount(LABELS[:right], minlength=4)
    probabilities = np.eye(4, dtype=np.float32)[predicted]
    return Evaluation(correct, np.bincount(LABELS), 0.5, LABELS, probabilities)


def script(monkeypatch: pytest.MonkeyPatch, right: Sequence[int]) -> None:
    """Let round t find right[t - 1] of eight validation images, and 8 minus that in the test."""
    found = iter(right)

    def evaluate_parts(run: Any, model: Any, heads: Any = ()) -> dict[str, Evaluation]:
        number = next(found)
        return {"test": evaluation(8 - number), "val": evaluation(number)}

    monkeypatch.setattr(strategies.evaluation, "evaluate_parts", evaluate_parts)


def test_the_first_of_the_best_rounds_is_kept_and_reported(values, runs, monkeypatch, caplog):
    script(monkeypatch, [4, 6, 6, 5])
    with caplog.at_level(logging.INFO):
        serve({**values, "num-server-rounds": 4})
    run = runs / "run"
    kept = load_file(run / "snapshots" / "round0002" / "model.safetensors")
    assert identical(load_file(run / "best.safetensors"), kept)
    assert not identical(load_file(run / "model.safetensors"), kept)

    found = read_json(run / "summary.json")
    chosen = found["selection"]["chosen"]
    assert (chosen["by"], chosen["round"], chosen["value"]) == ("val-accuracy", 2, 75.0)
    # what the test part says of that round: 2 of 8, certain and wrong about the others
    assert chosen["test"]["accuracy"] == 25.0
    assert chosen["test"]["brier"] == 1.5
    assert set(found["selection"]) == {
        *("final_accuracy", "last50_accuracy", "best5_accuracy", "chosen")
    }
    assert "picking" in found["selection"]["best5_accuracy"]
    assert found["final_accuracy"] == 37.5
    assert read_files(run).chosen_round == 2
    assert "round 2 25.0 % (chosen by val-accuracy)" in messages_of(caplog.records, "INFO")[-2]

    predictions = Predictions.read(run)
    assert (predictions.final_round, predictions.chosen_round) == (4, 2)
    for array, right in (("final", 3), ("chosen", 2), ("val_final", 5), ("val_chosen", 6)):
        given = getattr(predictions, array).argmax(axis=1)
        assert (given == LABELS).sum() == right, array
    parts = {(row["round"], row["part"]) for row in read_csv(run / "confusion.csv")}
    assert parts == {("4", "test"), ("4", "val"), ("2", "test"), ("2", "val")}
    measured = {(row["round"], row["part"]) for row in read_csv(run / "metrics.csv")}
    assert measured == {(str(t), part) for t in range(1, 5) for part in ("test", "val")}


def test_of_an_error_the_smallest_is_the_best(values, runs, monkeypatch):
    script(monkeypatch, [4, 6, 6, 5])
    serve({**values, "num-server-rounds": 4, "select-by": "val-brier"})
    assert read_files(runs / "run").chosen_round == 2


def test_without_select_by_nothing_is_chosen(values, runs, monkeypatch):
    script(monkeypatch, [4, 6])
    serve({**values, "select-by": ""})
    assert not (runs / "run" / "best.safetensors").exists()
    assert "chosen" not in read_json(runs / "run" / "summary.json")["selection"]
    assert Predictions.read(runs / "run").chosen is None


def test_patience_ends_a_run_early_and_says_so(values, runs, monkeypatch, caplog):
    script(monkeypatch, [4, 6, 6, 5, 8])
    with caplog.at_level(logging.INFO):
        grid = serve({**values, "num-server-rounds": 9, "patience": 2})
    found = read_json(runs / "run" / "summary.json")
    assert (found["status"], found["rounds"]) == ("completed", 4)
    said = (
        "stopped early after round 4 (patience=2): val-accuracy was no better in 2 evaluated "
        "rounds than in round 2"
    )
    assert found["reason"] == said
    assert said in messages_of(caplog.records, "INFO")
    assert max(m.content["config"]["round"] for m in grid.trained()) == 4
    for name in ("model.safetensors", "best.safetensors", "predictions.npz"):
        assert (runs / "run" / name).exists()


def test_patience_that_runs_out_with_the_last_round_ends_nothing_early(values, runs, monkeypatch):
    script(monkeypatch, [6, 5, 4])
    serve({**values, "num-server-rounds": 3, "patience": 2})
    assert "reason" not in read_json(runs / "run" / "summary.json")


def test_a_run_that_has_not_reached_what_it_had_to_ends_early_and_says_so(
    values, runs, monkeypatch
):
    """Of eight images 4, 6 and 6 are right: 75 % is reached by round 2, 80 % is not by round 3."""
    script(monkeypatch, [4, 6, 6, 8])
    serve({**values, "num-server-rounds": 9, "must-reach": "2:75,3:80"})
    found = read_json(runs / "run" / "summary.json")
    assert (found["status"], found["rounds"]) == ("completed", 3)
    assert found["reason"] == (
        "stopped early after round 3 (must-reach): val-accuracy was at best 75, and had to be 80 "
        "by round 3"
    )
    assert found["selection"]["chosen"]["round"] == 2


def test_what_is_reached_early_need_not_be_held(values, runs, monkeypatch):
    script(monkeypatch, [6, 4, 4, 4])
    serve({**values, "num-server-rounds": 4, "must-reach": "3:75"})
    assert read_json(runs / "run" / "summary.json")["rounds"] == 4


def test_of_an_error_little_must_be_reached(values, runs, monkeypatch):
    """Brier's score of half the images certain and wrong is 1."""
    script(monkeypatch, [4, 4, 4])
    what = {"select-by": "val-brier", "num-server-rounds": 3}
    serve({**values, **what, "must-reach": "1:1.0,2:0.9"})
    assert read_json(runs / "run" / "summary.json")["rounds"] == 2


def test_a_resumed_run_keeps_the_choice(values, runs, monkeypatch):
    """Chosen in round 1, which only the checkpoint knows of; and patience goes on counting."""
    values = {**values, "num-server-rounds": 9, "checkpoint-every": 2, "patience": 3}
    values |= {"select-by": "val-accuracy", "run-name": "run"}
    script(monkeypatch, [7, 6, 5])
    serve(values, crash_in=4)  # goes on after round 2
    monkeypatch.setattr(strategies.outcome, "evaluate_parts", lambda *_: {
        "test": evaluation(1), "val": evaluation(7)
    })  # fmt: skip
    script(monkeypatch, [6, 5, 4])
    serve(resuming(values), run_id=8)
    found = read_json(runs / "next" / "summary.json")
    assert found["selection"]["chosen"]["round"] == 1
    assert found["selection"]["chosen"]["test"]["accuracy"] == 12.5
    assert found["rounds"] == 4  # rounds 2, 3 and 4 were no better
    first = load_file(runs / "run" / "snapshots" / "round0001" / "model.safetensors")
    assert identical(load_file(runs / "next" / "best.safetensors"), first)
    assert (Predictions.read(runs / "next").val_chosen.argmax(axis=1) == LABELS).sum() == 7


def test_a_resumed_run_ends_as_one_that_was_never_stopped(values, runs):
    """With real evaluations, to the last bit."""
    values = {**values, "num-server-rounds": 5, "checkpoint-every": 2, "learning-rate": 0.5}
    serve({**values, "run-name": "whole"})
    serve(values, crash_in=4)
    serve(resuming(values), run_id=8)
    best = [load_file(runs / name / "best.safetensors") for name in ("whole", "next")]
    assert identical(*best)
    whole, resumed = (vars(Predictions.read(runs / name)) for name in ("whole", "next"))
    for name, value in whole.items():
        assert np.array_equal(value, resumed[name]), name
    selections = [read_json(runs / n / "summary.json")["selection"] for n in ("whole", "next")]
    assert selections[0] == selections[1]


# --- refused before a folder exists ---------------------------------------------------------

OWN = {"classes": "0,1,2,3", "image-shape": "1x28x28", "evaluate": "both"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"validation": "official"}, "has no official validation part"),
        ({"validation": "0.9"}, 'validation="0.9" is not allowed: a fraction is from 0.01 to 0.5'),
        ({"validation": "half"}, 'validation="half" is not allowed: expected "merged", "official"'),
        ({"validation": "merged"}, 'select-by="val-accuracy" needs a validation part'),
        ({"select-by": "val-loss"}, 'select-by="val-loss" is not allowed: expected one of'),
        (
            {"select-by": "", "patience": 3},
            "patience=3 needs to know what better is: set select-by",
        ),
        (
            {"select-by": "", "must-reach": "3:50"},
            'must-reach="3:50" needs to know what is to be reached: set select-by',
        ),
        *(
            ({"must-reach": text}, f'must-reach="{text}" is not allowed: expected rounds and')
            for text in ("50", "0:50", "3:", "3:x", "3:50,", "3:50;4:60", "3:-1", "3:nan")
        ),
        ({"patience": -1}, "patience=-1 is not allowed: expected a whole number at least 0"),
        ({"evaluate": "clients"}, 'which evaluate="clients" leaves out'),
        ({"evaluate": "none"}, 'which evaluate="none" leaves out'),
        (
            {"classes": "0,1,2,3", "image-shape": "1x28x28"},
            'is for the nodes to evaluate on, which evaluate="server" leaves out',
        ),
        (
            {**OWN, "validation": "official"},
            "is a part of one data set, and here nodes have their own data: use a fraction",
        ),
        (
            {**OWN, "select-by": "val-macro-f1"},
            'select-by="val-macro-f1" is not possible where nodes have their own data',
        ),
        (
            {"norm": "batch-local", "strategy": "fedgela", "batch-size": 99, "validation": "0.25"},
            "of the 100 validation images alone",
        ),
    ],
)
def test_one_sentence_and_no_folder(values, runs, changes, words):
    values |= changes
    grid = FakeGrid(values, simulated_nodes(2))
    with pytest.raises(ConfigError, match=words) as caught:
        server_app.app(grid, server_context(values))
    assert "\n" not in str(caught.value)
    assert not runs.exists()
    assert not grid.sent


def test_what_is_not_defined_on_the_part_cannot_choose(values, runs, tmp_path):
    labels = np.array([0] * 50 + [1] * 2)
    images = np.random.default_rng(0).integers(0, 256, (52, 28, 28), np.uint8)
    parts = {"train_images": images, "train_labels": labels}
    np.savez(tmp_path / "rare.npz", **parts, test_images=images, test_labels=labels)
    values |= {"dataset": str(tmp_path / "rare.npz"), "select-by": "val-auc"}
    open_dataset(values["dataset"], "")
    with pytest.raises(ConfigError, match=r"needs images of every class, but the 10 .* none of"):
        server_app.app(FakeGrid(values, simulated_nodes(2)), server_context(values))
    assert not runs.exists()
