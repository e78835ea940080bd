"""`fedadb reproduce --print-config`: the file of exactly the run that it would start."""

import re

import pytest
from flwr.cli.run.run import parse_config_args
from helpers import REPOSITORY
from typer.testing import CliRunner

from fedadb_app.assignments import app_defaults
from fedadb_app.cli.main import main
from fedadb_app.reproduction.catalogue import STUDIES, study_of
from fedadb_app.reproduction.cell_config import cell_text, only_cell_text
from fedadb_app.reproduction.entries import only
from fedadb_app.reproduction.plan import plan_of
from strategies.registry import read_run_config

DEFAULTS = app_defaults(REPOSITORY)


def plan(item, scale="full", words=(), **values):
    (study,) = only([study_of(item, scale)], words)
    return plan_of(study, values, DEFAULTS, 1, 0.0)


def as_flower_reads_it(text, path):
    """Do what `flwr run --run-config FILE` does with the file."""
    path.write_text(text, encoding="utf-8")
    values = parse_config_args([str(path)])
    assert values.keys() <= DEFAULTS.keys()
    return values


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("item", STUDIES)
def test_the_file_of_every_run_says_what_the_command_would_run(item, scale, tmp_path):
    whole = plan(item, scale)
    for entry in whole.study.entries:
        grid = whole.grids[entry.setting.name]
        cell = next(whole.cells(entry))
        text = cell_text(whole.study, entry, cell, grid)
        found = as_flower_reads_it(text, tmp_path / "cell.toml")
        wanted = {"strategy": cell.strategy, "alpha": cell.alpha, "seed": cell.seed, **grid.values}
        assert {**DEFAULTS, **found} == {**DEFAULTS, **wanted}
        assert ("alpha" in text) == (found.get("partition") != "domain")
        clients = {"cross-device": 100, "cross-silo": 20}[entry.setting.scenario]
        assert f"#   --federation-config 'num-supernodes={clients} client-resources-num" in text
    read_run_config({**DEFAULTS, **found})


def printed(*arguments):
    return CliRunner().invoke(
        main, ["reproduce", *arguments, "--print-config", "--app", str(REPOSITORY)]
    )


def test_what_is_printed_is_the_file(tmp_path):
    words = ["--only", "cifar10,cross-silo,fedsol,alpha=0.5"]
    result = printed("table1", "--scale", "full", *words, "--seeds", "2", "-c", "momentum=0.5")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "# Table 1, FedSOL: CIFAR-10, alpha = 0.5, seed 2, cross-silo."
    assert "With momentum=0.5." in lines[1]
    assert lines[2].startswith("# The paper reports 72.75 ± 0.13 ")
    (file,) = set(re.findall(r"[\w.-]+\.toml", result.stdout))
    assert file == "cross-silo-cifar10-fedsol-alpha0.5-seed2.toml"
    assert f"# flwr run . --stream --run-config {file} \\" in lines
    found = as_flower_reads_it(result.stdout, tmp_path / file)
    assert found == {
        "strategy": "fedsol",
        "alpha": 0.5,
        "seed": 2,
        "momentum": 0.5,
        "dataset": "cifar10",
        "model": "auto",
        "num-server-rounds": 1000,
        "fraction-train": 0.2,
        "min-nodes": 20,
    }


def test_a_row_of_an_ablation(tmp_path):
    result = printed("table3", "--only", "use-lcb=false", "--seeds", "0", "--rounds", "7")
    assert result.exit_code == 0, result.output
    found = as_flower_reads_it(result.stdout, tmp_path / "cell.toml")
    assert (found["fedadb.use-lcb"], found["num-server-rounds"]) == (False, 7)


def test_a_run_that_two_items_share_is_one():
    text = only_cell_text(
        [plan("table1", "small", ["fedadb", "cross-device"]), plan("figure7", "small")]
    )
    assert text.startswith("# Table 1, FedADB: PathMNIST")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table3"], "these are 12; choose one by --only fedadb or fedavg, by --only use-anchors="),
        (["table3"], "by --seeds 0 or 1 or 2"),
        (["table1"], "these are 22; choose one by --only fedacg or fedadb or "),
        (["table1", "--only", "fedadb"], "by --only cross-device or cross-silo"),
        (["table3", "--scale", "full", "--only", "fedavg"], "--only alpha=0.05 or alpha=0.1 or "),
    ],
)
def test_several_runs_are_no_file(arguments, said):
    result = printed(*arguments)
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
