"""`fedadb log`: what is handed over of a run, what is refused, and TensorBoard read back."""

import json
import shutil
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from report_pages import ACCURACIES, set_status

from fedadb_app.errors import DataError
from fedadb_app.runs.series import cells
from fedadb_app.trackers.handed import Handed, read_handed

with_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="TensorBoard, an extra, is not installed"
)


def test_what_a_run_hands_over(run):
    found = read_handed(run, models=False)
    assert found.completed
    assert {t: v for t, tag, v in found.series if tag == "rounds/accuracy"} == dict(
        enumerate(ACCURACIES, start=1)
    )
    assert {tag for _, tag, _ in found.series} >= {
        "rounds/seconds_train",
        "class_accuracy/0-cat",
        "diagnostics/train_loss",
    }
    values = found.parameters
    assert (values["strategy"], values["seed"], values["alpha"]) == ("fedadb", 3, 0.1)
    assert values["fedadb.anchors-per-class"] == 1  # its own, and of no other method
    assert not [key for key in values if key.startswith(("feddyn.", "packages.", "origin."))]
    assert found.numbers["final_accuracy"] == ACCURACIES[-1]
    assert found.numbers["rounds"] == 4
    assert (found.tags["strategy"], found.tags["seed"]) == ("fedadb", "3")
    assert len(found.tags["app-hash"]) == 64
    assert [path.name for path in found.files] == [
        "config.toml",
        "summary.json",
        "rounds.csv",
        "class_accuracy.csv",
        "diagnostics.csv",
    ]


def test_the_chosen_round_is_among_the_numbers(run):
    test = {"accuracy": 33.33, "auc": 0.75}
    chosen = {"by": "val-auc", "round": 2, "value": 0.875, "test": test}
    set_status(run, "completed", selection={"chosen": chosen})
    numbers = read_handed(run, models=False).numbers
    assert numbers["chosen_round"] == 2
    assert numbers["chosen_value"] == 0.875
    assert (numbers["chosen_accuracy"], numbers["chosen_auc"]) == (33.33, 0.75)


def test_a_commit_is_known_or_it_is_not():
    def of(git):
        return Handed(None, "", {}, (), {}, {"status": "failed", "git": git}, ()).commit

    assert of(f"{'a1' * 20}, 3 changed files") == "a1" * 20
    assert of("unknown: Git is not installed") == ""
    assert of(f"{'a1' * 30}") == ""


def test_a_run_is_known_by_its_content_wherever_it_lies(run, tmp_path):
    elsewhere = shutil.copytree(run, tmp_path / "elsewhere")
    assert read_handed(run, False).digest == read_handed(elsewhere, False).digest
    set_status(elsewhere, "failed")
    assert read_handed(run, False).digest != read_handed(elsewhere, False).digest


def test_models_are_handed_over_where_they_are_asked_for(run):
    with pytest.raises(DataError, match=r"--models: .*model\.safetensors is not there"):
        read_handed(run, models=True)
    (run / "model.safetensors").write_bytes(b"is not looked at")
    assert run / "model.safetensors" in read_handed(run, models=True).files
    assert run / "model.safetensors" not in read_handed(run, models=False).files


# --- refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("tracker", ["mlflow", "wandb", "tensorboard"])
def test_a_run_that_goes_on_and_what_is_no_run_are_refused(run, tmp_path, call, tracker):
    set_status(run, "running")
    for folder, said in [(run, "the run has not ended, or was killed"), (tmp_path, "holds no run")]:
        code, output = call(folder, "--to", tracker)
        assert (code, output.count("\n")) == (1, 1)
        assert said in output


def test_a_damaged_table_is_named_and_nothing_is_handed_over(run, call):
    (run / "rounds.csv").write_text("round,accuracy\n1,2,3\n")
    code, output = call(run, "--to", "tensorboard")
    assert (code, output.count("\n")) == (1, 1)
    assert "rounds.csv cannot be read" in output
    assert not (run / "tensorboard").exists()


@pytest.mark.parametrize(
    ("tracker", "option", "said"),
    [
        ("mlflow", ["--project", "x"], "--project says nothing to mlflow, which takes --tracking"),
        ("wandb", ["--experiment", "x"], "--experiment says nothing to wandb, which takes --proj"),
        ("wandb", ["--tracking-uri", "x"], "--tracking-uri says nothing to wandb"),
        ("tensorboard", ["--models"], "--models says nothing to tensorboard, which takes none"),
    ],
)
def test_an_option_of_another_tracker_is_refused(run, call, tracker, option, said):
    code, output = call(run, "--to", tracker, *option)
    assert (code, output.count("\n")) == (1, 1)
    assert said in output


@pytest.mark.parametrize(
    ("tracker", "options"),
    [("mlflow", ["--tracking-uri", "http://127.0.0.1:9"]), ("wandb", []), ("tensorboard", [])],
)
def test_a_library_that_is_not_installed(run, call, monkeypatch, tracker, options):
    monkeypatch.setitem(sys.modules, tracker, None)  # so that its import fails
    code, output = call(run, "--to", tracker, *options)
    assert (code, output.count("\n")) == (1, 1)
    assert f"--to {tracker} needs its library" in output
    assert f'pip install "fedadb-app[{tracker}]"' in output


def test_mlflow_needs_to_know_its_server(run, call):
    code, output = call(run, "--to", "mlflow")
    assert (code, output.count("\n")) == (1, 1)
    assert "give --tracking-uri" in output
    assert "MLFLOW_TRACKING_URI" in output


def test_wandb_that_is_switched_off_would_take_nothing(run, call, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    code, output = call(run, "--to", "wandb")
    assert (code, output.count("\n")) == (1, 1)
    assert "WANDB_MODE=disabled" in output


# --- TensorBoard ----------------------------------------------------------------------------


@with_tensorboard
def test_tensorboard_has_every_cell_and_the_configuration_once(run, call):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, output = call(run, "--to", "tensorboard")
    assert (code, output) == (0, f"logged: {run / 'tensorboard'}\n")
    found = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    for server_round, tag, value in cells(run):
        at = {e.step: e.value for e in found.Scalars(tag)}
        assert at[server_round] == float(np.float32(value)), tag
    numbers = json.loads((run / "summary.json").read_text())
    (final,) = found.Scalars("summary/final_accuracy")
    assert final.value == pytest.approx(numbers["final_accuracy"])
    given = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"anchors-per-class" in given

    code, output = call(run, "--to", "tensorboard")
    assert (code, output.count("\n")) == (1, 1)
    assert "has event files already" in output
