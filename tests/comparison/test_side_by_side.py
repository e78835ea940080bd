"""Runs side by side, one run of many, what one method alone has, and how long it may take."""

import json
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace

import psutil
import pytest
import tomli_w
from helpers import REPOSITORY, write_run
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.cli.values import parse_by_method
from fedadb_app.comparison import running
from fedadb_app.comparison.estimate import estimates, in_words
from fedadb_app.comparison.folder import claim, open_folder
from fedadb_app.comparison.grid import Grid, checked_grid
from fedadb_app.comparison.running import run_comparison, run_missing, run_only
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import Simulation, Stopped
from fedadb_app.own_superlink import end_forsaken


@pytest.fixture
def grid():
    values = {"num-server-rounds": 3}
    defaults = {"strategy": "fedadb", "alpha": 0.1, "seed": 0, "learning-rate": 0.01}
    return Grid(("fedavg", "fedadb"), (0.1,), (0, 1), values, defaults, Simulation(4))


class Flower:
    """Stands for Flower and its SuperLinks: notes who runs when, and on which SuperLink."""

    def __init__(self, monkeypatch):
        self.values, self.homes, self.simulations, self.together = {}, [], [], 0
        self._running, self._lock = 0, threading.Lock()
        self._links = 0
        self.order = {}
        monkeypatch.setattr(running, "FlowerRun", self.start)
        monkeypatch.setattr(running, "own_superlink", self.superlink)
        monkeypatch.setattr("os.cpu_count", lambda: 4)

    def start(self, app, values, simulation, home=None):
        self.values[values["run-name"]] = values
        self.homes.append(home)
        self.simulations.append(simulation)
        return values

    def superlink(self, owner, log):
        self._links += 1
        return nullcontext(f"home {self._links}")

    def watch(self, values, folder, cell, stop):
        with self._lock:
            self._running += 1
            self.together = max(self.together, self._running)
        if wait := self.order.get(cell.name):
            wait(stop)
        write_run(folder, [10.0, 20.0, 30.0 + cell.seed])
        (folder / "config.toml").write_text(tomli_w.dumps(values))
        with self._lock:
            self._running -= 1
        return "finished:completed", ""


def test_two_jobs_run_two_at_a_time_each_on_a_superlink_and_half_the_cpus(
    monkeypatch, tmp_path, grid
):
    flower = Flower(monkeypatch)
    both = threading.Barrier(2, timeout=20)
    for name in ("fedavg-alpha0.1-seed0", "fedadb-alpha0.1-seed0"):
        flower.order[name] = lambda stop: both.wait()
    outcomes = list(run_missing(tmp_path, grid, REPOSITORY, flower.watch, jobs=2))
    assert flower.together == 2
    assert set(flower.homes) == {"home 1", "home 2"}
    assert {s.workers for s in flower.simulations} == {2}
    assert {o.cell for o in outcomes} == set(grid.cells())
    assert all(o.reading is not None for o in outcomes)


def test_tables_do_not_depend_on_who_was_first(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    last = threading.Event()
    first, _, _, fourth = (cell.name for cell in grid.cells())
    flower.order[first] = lambda stop: last.wait(20)  # begun first, ends last
    flower.order[fourth] = lambda stop: last.set()
    list(run_comparison(tmp_path / "two", grid, REPOSITORY, "fedavg", flower.watch, 2))
    flower.order.clear()
    list(run_comparison(tmp_path / "one", grid, REPOSITORY, "fedavg", flower.watch, 1))
    for table in ("comparison.csv", "comparison.md"):
        assert (tmp_path / "two" / table).read_bytes() == (tmp_path / "one" / table).read_bytes()


def test_an_interruption_stops_all_runs_and_begins_no_other(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    stopped = []

    def wait(stop):
        assert stop.wait(20)
        stopped.append(1)
        raise Stopped

    first, second, *_ = (cell.name for cell in grid.cells())
    flower.order = {second: wait, "fedavg-alpha0.1-seed1": wait, "fedadb-alpha0.1-seed1": wait}
    outcomes = run_missing(tmp_path, grid, REPOSITORY, flower.watch, jobs=2)
    assert next(outcomes).cell.name == first
    with pytest.raises(KeyboardInterrupt):
        outcomes.throw(KeyboardInterrupt)
    assert 1 <= len(stopped) <= 2
    assert len(flower.values) <= 3


@pytest.mark.parametrize(
    ("simulation", "jobs", "said"),
    [
        (Simulation(4, client_cpus=2), 3, r"--jobs 3: each run would have 1 of .* 4 CPUs"),
        (Simulation(4), 5, "--jobs 5: each run would have 0"),
    ],
)
def test_jobs_that_leave_no_cpu_for_a_client(monkeypatch, simulation, jobs, said):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with pytest.raises(ConfigError, match=said):
        simulation.shared_by(jobs)


def test_workers_are_what_ray_gets_cpus_for(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert "init-args-num-cpus" not in Simulation(4).arguments()
    assert Simulation(4, 2, workers=3).arguments().endswith("init-args-num-cpus=6")
    assert Simulation(4, 2).shared_by(2).workers == 2
    assert Simulation(4, workers=1).shared_by(3).workers == 1
    with pytest.raises(ConfigError, match=r"--workers 5: with 2 CPUs .* they need 10"):
        Simulation(4, 2, workers=5)


# --- one cell -------------------------------------------------------------------------------


def test_one_cell_runs_alone_on_a_superlink_of_its_own(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    (tmp_path / "runs").mkdir()
    cell = list(grid.cells())[2]
    assert run_only(tmp_path, grid, cell, REPOSITORY, flower.watch).reading is not None
    assert run_only(tmp_path, grid, cell, REPOSITORY, flower.watch).reading is not None
    assert list(flower.values) == ["fedavg-alpha0.1-seed1"]
    assert flower.homes == ["home 1"]
    assert not (tmp_path / "comparison.csv").exists()


def test_a_cell_that_another_call_runs_is_left_to_it(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    (tmp_path / "runs").mkdir()
    cell = next(iter(grid.cells()))
    with claim(tmp_path / "runs" / cell.name):
        outcome = run_only(tmp_path, grid, cell, REPOSITORY, flower.watch)
    assert outcome.reading is None
    assert "another call of `fedadb` is running it" in outcome.reason
    assert not flower.values


# --- what one method alone has --------------------------------------------------------------


def test_values_of_one_method_come_from_words_and_from_files(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text(
        "alpha = 0.5\n[methods.fedsol]\nlearning-rate = 0.03\n[methods.fedsol.fedsol]\nrho = 0.5\n"
    )
    shared, own = parse_by_method(
        [str(file), "feddyn: feddyn.alpha=0.01", "momentum=0.5", "fedsol: fedsol.rho=2.0"]
    )
    assert shared == {"alpha": 0.5, "momentum": 0.5}
    assert own == {
        "fedsol": {"learning-rate": 0.03, "fedsol.rho": 2.0},
        "feddyn": {"feddyn.alpha": 0.01},
    }


def test_they_reach_its_runs_only_and_are_shown(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    grid = replace(grid, own={"fedadb": {"learning-rate": 0.5}}, seeds=(0,))
    with open_folder(tmp_path, grid):
        list(run_comparison(tmp_path, grid, REPOSITORY, "fedavg", flower.watch, 1))
    assert "learning-rate" not in flower.values["fedavg-alpha0.1-seed0"]
    assert flower.values["fedadb-alpha0.1-seed0"]["learning-rate"] == 0.5
    assert "| FedADB | `learning-rate=0.5` |" in (tmp_path / "comparison.md").read_text()
    recorded = json.loads((tmp_path / "comparison.json").read_text())
    assert recorded["methods"] == {"fedadb": {"learning-rate": 0.5}}
    only_fedavg = replace(grid, strategies=("fedavg",), own={})
    open_folder(tmp_path, only_fedavg).release()  # what another method has is kept
    assert json.loads((tmp_path / "comparison.json").read_text()) == recorded


def test_a_run_with_other_values_of_its_own_is_named(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    grid = replace(grid, seeds=(0,))
    list(run_missing(tmp_path, grid, REPOSITORY, flower.watch))
    other = replace(grid, own={"fedadb": {"learning-rate": 0.5}})
    of_fedavg, of_fedadb = run_missing(tmp_path, other, REPOSITORY, flower.watch)
    assert of_fedavg.reading is not None
    assert "says learning-rate = 0.01, asked for is 0.5" in of_fedadb.reason


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"fedsol": {"fedsol.rho": 1.0}}, "fedsol has values of its own, but is not among"),
        ({"fedavg": {"dataset": "digits"}}, "fedavg: dataset must be the same for all methods"),
        ({"fedavg": {"num-server-rounds": 3}}, "num-server-rounds must be the same"),
        ({"fedavg": {"seed": 3}}, "seed is set by the comparison itself"),
        ({"fedavg": {"learnig-rate": 0.1}}, 'did you mean "learning-rate"'),
    ],
)
def test_what_no_method_may_have_for_itself(own, said):
    with pytest.raises(ConfigError, match=said):
        checked_grid(REPOSITORY, {}, ["fedavg"], (), [0], Simulation(), own)


# --- the command ----------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(main, ["compare", "--app", str(REPOSITORY), *arguments])


def test_a_dry_run_lists_the_runs_and_writes_nothing(tmp_path):
    folder = tmp_path / "c"
    result = call("--output", str(folder), "--strategies", "fedavg,fedadb", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "fedadb-alpha0.1-seed0" in result.output
    assert "2 of 2 runs are missing" in result.output
    assert "unknown: no run of this comparison is complete yet" in " ".join(result.output.split())
    assert not folder.exists()


def test_the_estimate_is_the_methods_own_speed_then_anybodys(monkeypatch, tmp_path, grid):
    flower = Flower(monkeypatch)
    one = replace(grid, strategies=("fedavg",), seeds=(0,))
    list(run_missing(tmp_path, one, REPOSITORY, flower.watch))
    plan = estimates(tmp_path, grid)
    assert [p.complete for p in plan] == [True, False, False, False]
    assert len({p.seconds for p in plan}) == 1
    assert plan[0].seconds > 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "unknown"), (40.2, "40 s"), (700, "12 min"), (11100, "3 h 5 min")],
)
def test_lengths_of_time_in_words(seconds, words):
    assert in_words(seconds) == words


def test_a_cell_that_does_not_exist(tmp_path):
    result = call("--output", str(tmp_path / "c"), "--strategies", "fedavg", "--cell", "2")
    assert result.exit_code == 1
    assert "--cell 2: this comparison has 1 runs" in result.output


# --- SuperLinks -----------------------------------------------------------------------------


def test_what_a_killed_command_left_running_is_ended(tmp_path):
    """Only what works for this folder; a neighbour's SuperLink goes on."""
    waiting = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]

    def start(owner):
        home = tmp_path / f"home of {owner}"
        home.mkdir()
        marked = {**os.environ, "FEDADB_SUPERLINK_OF": str(tmp_path / owner)}
        process = subprocess.Popen(
            waiting, env={**marked, "FLWR_HOME": str(home)}, stdout=subprocess.PIPE
        )
        process.stdout.readline()
        return process

    mine, neighbours = start("mine"), start("neighbours")
    try:
        assert end_forsaken(tmp_path / "mine") == 1
        assert not psutil.pid_exists(mine.pid)
        assert psutil.pid_exists(neighbours.pid)
        assert neighbours.poll() is None
        assert not (tmp_path / "home of mine").exists()
        assert end_forsaken(tmp_path / "mine") == 0
    finally:
        for process in (mine, neighbours):
            process.kill()
            process.wait()
            process.stdout.close()
