"""TensorBoard's event files, read back as TensorBoard reads them, against the tables."""

import math
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from fake_grid import server_context
from helpers import REPOSITORY, read_csv, serve

import server_app
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.writer import RunFolder

CLASSES = ("dog, wet", "dog; wet", "lung/ä", "round")
TAGS = ["0-dog__wet", "1-dog__wet", "2-lung_ä", "3-round"]


with_tensorboard = pytest.mark.skipif(
    find_spec("tensorboard") is None, reason="TensorBoard, an extra, is not installed"
)


@pytest.fixture
def config(tmp_path):
    return RunConfig(output_dir=str(tmp_path), run_name="run", tensorboard=True)


def events(run_folder) -> dict[str, dict[int, float]]:
    """Tag -> step -> value, of the only event file there is."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = (run_folder / "tensorboard").iterdir()
    found = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    kinds = found.Tags()
    assert kinds["tensors"] == []  # TensorBoard's fast loader leaves out those of doubles
    series = {tag: found.Scalars(tag) for tag in kinds["scalars"]}
    assert all(len({e.step for e in points}) == len(points) for points in series.values())
    return {tag: {e.step: e.value for e in points} for tag, points in series.items()}


def single(value: float) -> float:
    """The value in single precision, as event files hold it."""
    return float(np.float32(value))


def tables(run_folder) -> dict[str, dict[int, float]]:
    """The same of the tables, of a run whose names are safe as they are."""
    expected: dict[str, dict[int, float]] = {}
    for table in ("rounds", "class_accuracy"):
        for row in read_csv(run_folder / f"{table}.csv"):
            server_round = int(row.pop("round"))
            for label, (name, cell) in enumerate(row.items()):
                tag = f"rounds/{name}" if table == "rounds" else f"class_accuracy/{label}-{name}"
                if cell:
                    expected.setdefault(tag, {})[server_round] = single(float(cell))
    for row in read_csv(run_folder / "diagnostics.csv"):
        series = expected.setdefault(f"diagnostics/{row['name']}", {})
        series[int(row["round"])] = single(float(row["value"]))
    for row in read_csv(run_folder / "metrics.csv"):
        if not row["class"]:
            series = expected.setdefault(f"metrics/{row['part']}-{row['metric']}", {})
            series[int(row["round"])] = single(float(row["value"]))
    return expected


@with_tensorboard
def test_a_run_shows_every_cell_of_its_tables_but_metrics_of_classes(values, tmp_path):
    serve({**values, "strategy": "fedadb", "num-server-rounds": 3, "tensorboard": True})
    found = events(tmp_path / "runs" / "run")
    assert found == tables(tmp_path / "runs" / "run")
    for tag in (
        "rounds/accuracy",
        "rounds/loss",
        "rounds/learning_rate",
        "rounds/anchor_quality",
        "rounds/clients",
        "rounds/failures",
        "rounds/bytes_up",
        "rounds/seconds_train",
        "class_accuracy/3-3",
        "diagnostics/train_loss",
        "metrics/test-auc",
    ):
        assert found[tag].keys() == {1, 2, 3}, tag
    assert "rounds/epsilon" not in found  # nobody asked for privacy, so nobody knows


@with_tensorboard
def test_each_round_is_there_before_the_next_begins(config):
    with RunFolder.create(config, run_id=1) as folder:
        for t in (1, 2, 3):
            folder.add_round(RoundRecord(t, accuracy=10.0 * t, epsilon=0.5 * t), CLASSES)
            found = events(folder.path)
            assert found["rounds/accuracy"] == {s: 10.0 * s for s in range(1, t + 1)}
            assert found["rounds/epsilon"] == {s: 0.5 * s for s in range(1, t + 1)}


@with_tensorboard
def test_names_are_made_safe_and_stay_apart(config):
    with RunFolder.create(config, run_id=1) as folder:
        record = RoundRecord(
            1, class_accuracy=(1.0, 2.0, math.nan, 4.0), diagnostics={"a, b/c": 1e-9}
        )
        folder.add_round(record, CLASSES)
        folder.add_round(RoundRecord(2), CLASSES)
        folder.add_round(RoundRecord(3, class_accuracy=(5.0, 6.0, 7.0, 8.0)), CLASSES)
        found = events(folder.path)
    assert [found[f"class_accuracy/{tag}"] for tag in TAGS] == [
        {1: 1.0, 3: 5.0},
        {1: 2.0, 3: 6.0},
        {3: 7.0},  # a class without a test sample has no accuracy
        {1: 4.0, 3: 8.0},
    ]
    assert found["diagnostics/a__b_c"] == {1: single(1e-9)}
    assert "rounds/accuracy" not in found


@with_tensorboard
def test_a_resumed_run_shows_the_rounds_before_too(values, tmp_path):
    values = {**values, "num-server-rounds": 5, "checkpoint-every": 2}
    serve(values, crash_in=4)  # rounds 1 to 3 without event files
    runs = tmp_path / "runs"
    again = {"run-name": "next", "resume-from": str(runs / "run"), "tensorboard": True}
    serve({**values, **again}, run_id=8)
    found = events(runs / "next")
    assert found == tables(runs / "next")
    assert found["rounds/accuracy"].keys() == {1, 2, 3, 4, 5}
    assert not (runs / "run" / "tensorboard").exists()


# --- without it -----------------------------------------------------------------------------


def test_asked_for_and_not_installed(values, tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # so `import tensorboard` fails
    values = {**values, "tensorboard": True}
    with pytest.raises(ConfigError) as error:
        server_app.main(None, server_context(values))
    said = str(error.value)
    assert said.startswith("tensorboard=true needs TensorBoard in the environment of the server")
    assert 'pip install "fedadb-app[tensorboard]"' in said
    assert "\n" not in said
    assert not (tmp_path / "runs").exists()  # so the name of the run is still free
    serve({**values, "tensorboard": False})
    assert len(read_csv(tmp_path / "runs" / "run" / "rounds.csv")) == 2
    assert not (tmp_path / "runs" / "run" / "tensorboard").exists()


@pytest.mark.slow
def test_nobody_waits_for_its_import():
    code = "import sys, server_app, client_app, fedadb_app.cli; print('tensorboard' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
