"""Results on docs/results.md: a row per run, from its folder, with where it comes from."""

import importlib.util
import subprocess
import sys

import pytest
import tomli_w
from helpers import REPOSITORY, read_csv, write_run

from fedadb_app.app_hash import app_hash
from fedadb_app.assignments import app_defaults, parse_assignments
from fedadb_app.errors import DataError

ORIGIN = {"app-hash": "a" * 64, "git": "0123456789abcdef, no changed files", "gpu": "none used"}
ORIGIN |= {"processor": "Abacus 1", "cores": "2"}


def script(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def adding(monkeypatch, tmp_path):
    module = script("add_results")
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results")
    return module


def write_cell(comparison, method, seed, accuracies, origin=ORIGIN, **changes):
    folder = comparison / "runs" / f"{method}-alpha0.1-seed{seed}"
    write_run(folder, accuracies)
    summary = folder / "summary.json"
    summary.write_text(summary.read_text().replace("{", '{"clients": 4, ', 1))
    values = {**app_defaults(REPOSITORY), "strategy": method, "seed": seed, **changes}
    values |= {"output-dir": str(comparison), "run-name": folder.name}
    (folder / "config.toml").write_text(tomli_w.dumps({**values, "origin": origin}))
    return folder


def test_a_row_says_what_came_out_and_where_it_comes_from(adding, tmp_path):
    write_cell(tmp_path, "fedavg", 0, [10.0, 20.0, 30.0], **{"learning-rate": 0.5})
    (row,) = read_csv(adding.add("mine", tmp_path))
    assert (row["method"], row["alpha"], row["seed"], row["rounds"]) == ("fedavg", "0.1", "0", "3")
    assert (row["last50"], row["final"], row["best5"]) == ("20.00", "30.00", "20.00")
    assert row["commit"] == "0123456789ab"
    assert row["app"] == "a" * 12
    assert row["machine"] == "Abacus 1, 2 cores"
    begin, _, said = row["command"].partition(" -c ")
    assert begin == "fedadb run --num-supernodes 4"
    assert parse_assignments(said.strip("'")) == {"strategy": "fedavg", "learning-rate": 0.5}


def test_the_hash_is_of_what_numbers_follow_from(adding, tmp_path):
    def hashed(**changes):
        folder = write_cell(tmp_path, "fedavg", 0, [10.0], **changes)
        return dict(zip(adding.COLUMNS, adding.row_of(folder), strict=True))["configuration"]

    plain = hashed()
    assert hashed(**{"device": "cpu", "data-dir": "/elsewhere"}) == plain
    assert hashed(**{"learning-rate": 0.5}) != plain


def test_a_run_of_this_code_has_this_commit(adding, tmp_path, monkeypatch):
    """A bundle is no checkout; the app-hash says that it is this one's code."""
    monkeypatch.setattr(adding, "git_state", lambda _: "fedcba9876543210, no changed files")
    mine = {**ORIGIN, "git": "unknown: no checkout", "app-hash": app_hash(REPOSITORY)}
    assert adding.commit(mine) == "fedcba987654"
    assert adding.commit({**mine, "app-hash": "b" * 64}) == "unknown"
    monkeypatch.setattr(adding, "git_state", lambda _: "fedcba9876543210, 2 changed files")
    assert adding.commit(mine) == "fedcba987654+"
    assert adding.commit({}) == "unknown"


def test_a_second_call_adds_and_replaces(adding, tmp_path, capsys):
    write_cell(tmp_path, "fedavg", 0, [10.0])
    write_cell(tmp_path, "fedavg", 1, [20.0])
    unfinished = tmp_path / "runs" / "fedavg-alpha0.1-seed2"
    write_run(unfinished, [10.0], status="running")
    path = adding.add("mine", tmp_path)
    assert [row["final"] for row in read_csv(path)] == ["10.00", "20.00"]
    write_cell(tmp_path / "other", "fedavg", 1, [40.0])
    write_cell(tmp_path / "other", "fedadb", 0, [50.0])
    adding.add("mine", tmp_path / "other")
    assert [row["final"] for row in read_csv(path)] == ["10.00", "40.00", "50.00"]
    assert "2 runs, 1 of them new" in capsys.readouterr().out


def test_the_page_shows_means_origins_and_commands(adding, tmp_path):
    for seed, accuracy in ((0, 10.0), (1, 20.0)):
        write_cell(tmp_path, "fedavg", seed, [accuracy])
    path = adding.add("mine", tmp_path)
    text = script("write_tables").results(path)
    assert "| FedAvg | 0.1 | 2 | 1 | 15.00 ± 7.07 | 15.00 ± 7.07 |" in text
    for row in read_csv(path):
        assert f"| fedavg, alpha 0.1, seed {row['seed']} | `{row['configuration']}` |" in text
        assert row["command"] in text


def test_a_folder_without_runs_is_named(adding, tmp_path):
    with pytest.raises(DataError, match="holds no complete run of a comparison"):
        adding.add("mine", tmp_path)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["mine"], ["mine", "/nowhere"]])
def test_the_command_says_so_in_a_sentence(arguments):
    command = [sys.executable, "docs/add_results.py", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
