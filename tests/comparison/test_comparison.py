"""A comparison: which runs it makes, what counts, and the numbers in its tables."""

import json
import re
from dataclasses import replace

import pytest
import tomli_w
from helpers import REPOSITORY, write_run
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.cli.options import names, numbers
from fedadb_app.comparison import running
from fedadb_app.comparison.folder import check_data, is_complete, open_folder, set_aside
from fedadb_app.comparison.grid import Cell, Grid, checked_grid
from fedadb_app.comparison.running import run_missing
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.flower_run import FlowerError, Simulation


@pytest.fixture
def grid():
    values = {"num-server-rounds": 3}
    return Grid(("fedavg", "fedadb"), (0.1,), (0, 1), values, {"momentum": 0.9}, Simulation(4))


class Runs:
    """Stands for Flower: notes what is started, and lets each run end as `ends` says."""

    def __init__(self, monkeypatch, ends=None):
        self.started, self.ends = [], ends or {}
        monkeypatch.setattr(running, "FlowerRun", self.start)

    def start(self, app, values, simulation, home=None):
        self.started.append(values["run-name"])
        if self.ends.get(values["run-name"]) == "refused":
            raise FlowerError("flwr run: Invalid run configuration")
        return values

    def watch(self, values, folder, cell, stop=None):
        end = self.ends.get(cell.name, "completed")
        if end == "lying":  # the folder says completed, Flower does not
            write_run(folder, [10.0])
            return "finished:failed", "Simulation Runtime crashed"
        write_run(folder, [10.0, 20.0, 30.0], status=end)
        (folder / "config.toml").write_text(tomli_w.dumps(values))
        return f"finished:{end}", "details"


def test_cells_go_seed_by_seed(grid):
    assert [c.name for c in grid.cells()] == [
        "fedavg-alpha0.1-seed0",
        "fedadb-alpha0.1-seed0",
        "fedavg-alpha0.1-seed1",
        "fedadb-alpha0.1-seed1",
    ]


def test_a_second_call_repeats_nothing_that_is_complete(monkeypatch, tmp_path, grid):
    runs = Runs(monkeypatch)
    with open_folder(tmp_path, grid):
        first = list(run_missing(tmp_path, grid, REPOSITORY, runs.watch))
    assert all(o.reading is not None for o in first)
    assert len(runs.started) == 4
    with open_folder(tmp_path, grid):
        again = list(run_missing(tmp_path, grid, REPOSITORY, runs.watch))
    assert [o.reading.cell for o in again] == [o.reading.cell for o in first] == list(grid.cells())
    assert len(runs.started) == 4


def test_what_an_interruption_left_is_kept_aside_and_run_again(monkeypatch, tmp_path, grid):
    left = tmp_path / "runs" / "fedadb-alpha0.1-seed0"
    write_run(left, [5.0], status="running")
    runs = Runs(monkeypatch)
    outcomes = list(run_missing(tmp_path, grid, REPOSITORY, runs.watch))
    assert all(o.reading is not None for o in outcomes)
    kept = tmp_path / "runs" / "fedadb-alpha0.1-seed0.incomplete1"
    assert "5.00" in (kept / "rounds.csv").read_text()
    set_aside(left)
    assert (tmp_path / "runs" / "fedadb-alpha0.1-seed0.incomplete2").is_dir()


@pytest.mark.parametrize("end", ["failed", "lying", "refused", "stopped"])
def test_a_failed_run_never_counts_and_the_others_go_on(monkeypatch, tmp_path, grid, end):
    runs = Runs(monkeypatch, {"fedavg-alpha0.1-seed0": end})
    outcomes = list(run_missing(tmp_path, grid, REPOSITORY, runs.watch))
    bad, *good = outcomes
    assert bad.reading is None
    assert bad.reason
    assert all(o.reading is not None for o in good)
    assert not is_complete(tmp_path / "runs" / "fedavg-alpha0.1-seed0")


def test_other_settings_are_refused_and_named(tmp_path, grid):
    open_folder(tmp_path, grid).release()
    other = replace(grid, values={"num-server-rounds": 9})
    with pytest.raises(ConfigError, match=r"run-config\.num-server-rounds"):
        open_folder(tmp_path, other)
    with pytest.raises(ConfigError, match=r"run-config\.momentum"):
        open_folder(tmp_path, replace(grid, defaults={"momentum": 0.5}))
    more_seeds = replace(grid, strategies=("fedavg",), alphas=(0.5,), seeds=(7,))
    open_folder(tmp_path, more_seeds).release()  # what varies may grow


def test_where_things_lie_and_how_patient_a_run_is_may_differ(tmp_path, grid):
    open_folder(tmp_path, replace(grid, values={**grid.values, "data-dir": "/here"})).release()
    other = {"data-dir": "/there", "device": "cpu", "round-timeout": 9.0, "snapshot-every": 1}
    open_folder(tmp_path, replace(grid, values={**grid.values, **other})).release()
    open_folder(tmp_path, grid).release()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "lacks 'run-config'"),
        ('{"run-config": {"num-server-rounds": 3}}', "lacks 'federation'"),
        ('{"run-config": 3, "federation": {}}', "cannot be read"),
        ("[]", "cannot be read"),
        ('{"run-config": {"num-', "cannot be read"),
    ],
)
def test_damaged_settings_are_named(tmp_path, grid, text, said):
    settings = tmp_path / "comparison.json"
    settings.write_text(text)
    with pytest.raises(DataError, match=rf"comparison\.json.*{said}"):
        open_folder(tmp_path, grid)
    assert settings.read_text() == text
    settings.unlink()
    open_folder(tmp_path, grid).release()  # nothing is locked


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('strategy = "fedadb"', 'strategy = "fedadb", asked for is "fedavg"'),
        ("seed = 1", "seed = 1, asked for is 0"),
        ("alpha = 0.5", r"alpha = 0\.5, asked for is 0\.1"),
        ("num-server-rounds = 2", "num-server-rounds = 2, asked for is 3"),
        ("momentum = 0.5", r"momentum = 0\.5, asked for is 0\.9"),
        ("[fedavg]\nrate = 2", "fedavg.rate = 2, asked for is 1"),
        ("[fedavg]\nnew = 2", "fedavg.new = 2, asked for is null"),
        ("seed = ", "damaged"),
        (None, "cannot be read"),
    ],
)
def test_a_complete_run_that_is_another_one_stays_and_does_not_count(
    monkeypatch, tmp_path, grid, config, said
):
    defaults = {"strategy": "fedadb", "alpha": 0.1, "seed": 0, "num-server-rounds": 3}
    defaults |= {"momentum": 0.9, "fedavg.rate": 1}
    grid = replace(grid, defaults=defaults)
    folder = tmp_path / "runs" / "fedavg-alpha0.1-seed0"
    write_run(folder, [10.0, 20.0, 30.0])
    if config is not None:
        other = "" if config.startswith("strategy") else 'strategy = "fedavg"\n'
        (folder / "config.toml").write_text(other + config)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    runs = Runs(monkeypatch)
    bad, *good = run_missing(tmp_path, grid, REPOSITORY, runs.watch)
    assert bad.reading is None
    assert re.search(rf"{folder}.*{said}", bad.reason)
    assert all(outcome.reading is not None for outcome in good)
    assert "fedavg-alpha0.1-seed0" not in runs.started
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_run_of_an_older_version_that_lay_elsewhere_counts(monkeypatch, tmp_path, grid):
    """It wrote fewer keys: what it did not know was as it is by default."""
    grid = replace(grid, defaults={**grid.defaults, "privacy": "none", "fedadb.beta": "dynamic"})
    folder = tmp_path / "runs" / "fedavg-alpha0.1-seed0"
    write_run(folder, [10.0, 20.0, 30.0])
    written = {"strategy": "fedavg", "alpha": 0.1, "seed": 0, "num-server-rounds": 3}
    elsewhere = {"data-dir": "/there", "output-dir": "/there", "run-name": "x", "device": "cuda"}
    text = tomli_w.dumps({**written, **elsewhere, "packages": {"python": "3.11"}})
    (folder / "config.toml").write_text(text)
    runs = Runs(monkeypatch)
    first, *_ = run_missing(tmp_path, grid, REPOSITORY, runs.watch)
    assert first.reading is not None
    private = replace(grid, values={**grid.values, "privacy": "local"})
    first, *_ = run_missing(tmp_path, private, REPOSITORY, runs.watch)
    assert 'privacy = "none", asked for is "local"' in first.reason


def test_two_calls_do_not_work_in_one_folder(tmp_path, grid):
    with open_folder(tmp_path, grid), pytest.raises(ConfigError, match="another"):
        open_folder(tmp_path, grid)


# --- the command ----------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(main, ["compare", "--app", str(REPOSITORY), *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategies", "fedavg,fedadd"], 'did you mean "fedadb"?'),
        (["--seeds", "0,x"], "--seeds 0,x: expected numbers"),
        (["--seeds", ","], "--seeds ,: expected at least one number"),
        (["--strategies", ","], "expected at least one name"),
        (["--alphas", "0"], "alpha=0.0 is not allowed"),
        (["-c", "seed=3"], "seed is set by the comparison itself"),
        (["-c", 'evaluate="clients"'], "leaves the server nothing to compare"),
        (["--reference", "sgd"], "--reference sgd"),
        (["-c", "alhpa=1"], 'did you mean "alpha"?'),
    ],
)
def test_a_mistake_gets_one_sentence_before_the_first_run(tmp_path, arguments, said):
    result = call("--output", str(tmp_path / "c"), *arguments)
    assert result.exit_code == 1
    assert said in result.output
    assert not (tmp_path / "c" / "runs").exists()


def test_the_same_seed_or_alpha_twice_is_one_run():
    assert names("--strategies", "fedavg, fedavg,") == ["fedavg"]
    assert numbers("--seeds", "0,00,1", int) == [0, 1]
    assert numbers("--alphas", "0.1,0.10", float) == [0.1]


def test_without_an_alpha_it_is_the_apps():
    grid = checked_grid(REPOSITORY, {}, ["fedavg"], (), [0, 1], Simulation())
    assert [c.name for c in grid.cells()] == ["fedavg-alpha0.1-seed0", "fedavg-alpha0.1-seed1"]


def test_compare_writes_everything_and_fails_if_a_run_failed(monkeypatch, tmp_path):
    runs = Runs(monkeypatch, {"fedadb-alpha0.1-seed1": "failed"})

    def watch(progress, flower_run, folder, rounds, name, parent=None, stop=None):
        strategy, alpha, seed = name.split("-")
        cell = Cell(strategy, float(alpha.removeprefix("alpha")), int(seed.removeprefix("seed")))
        return runs.watch(flower_run, folder, cell)

    monkeypatch.setattr("fedadb_app.cli.comparison_progress.watch", watch)
    arguments = ["--strategies", "fedavg,fedadb", "--seeds", "0,1", "--output", str(tmp_path)]
    result = call(*arguments)
    assert result.exit_code == 1
    assert "1 runs failed" in result.output
    present = {p.name for p in tmp_path.iterdir()}
    assert {"comparison.csv", "comparison.md", "accuracy-alpha0.1.png", "classes-alpha0.1.png"} <= (
        present
    )
    runs.ends.clear()
    unreadable = tmp_path / "runs" / "fedavg-alpha0.1-seed0" / "rounds.csv"
    whole = unreadable.read_text()
    unreadable.unlink()
    result = call(*arguments)  # what is missing is run nevertheless
    assert result.exit_code == 1
    assert "holds no run: rounds.csv is not there" in " ".join(result.output.split())
    assert "1 runs failed or cannot be counted" in result.output
    unreadable.write_text(whole)
    result = call(*arguments, "-c", 'data-dir="/elsewhere"')
    assert result.exit_code == 0, result.output
    assert runs.started.count("fedadb-alpha0.1-seed1") == 2
    assert len(runs.started) == 5
    damaged = tmp_path / "runs" / "fedavg-alpha0.1-seed1" / "rounds.csv"
    damaged.write_text(damaged.read_text().replace("3,30.00", "3,nan", 1))
    result = call(*arguments)
    assert result.exit_code == 1
    assert "rounds.csv cannot be read: round 3" in " ".join(result.output.split())
    lines = (tmp_path / "comparison.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[1:]] == [  # the other runs are worth having
        ["fedavg", "0.1", "0"],
        ["fedadb", "0.1", "0"],
        ["fedadb", "0.1", "1"],
    ]
    assert len(runs.started) == 5


def test_a_run_on_other_images_does_not_count(tmp_path, grid):
    folder = tmp_path / "r"
    folder.mkdir()
    cell = next(iter(grid.cells()))
    grid = replace(grid, defaults={**grid.defaults, "dataset": "digits"})
    for digest in (None, open_dataset("digits", "").digest):  # an older version wrote none
        (folder / "summary.json").write_text(json.dumps({"data": digest} if digest else {}))
        check_data(folder, grid, cell)
    (folder / "summary.json").write_text(json.dumps({"data": "0" * 64}))
    with pytest.raises(DataError, match="was run on other images"):
        check_data(folder, grid, cell)
