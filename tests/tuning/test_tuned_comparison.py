"""`fedadb compare --tuned`: a comparison with the values that were chosen."""

import csv
import tomllib

import pytest
from helpers import REPOSITORY, read_csv
from tuning.cells import SHARED, Cells

from fedadb_app.cli.values import parse_by_method


def compared(tune, cells, whole, folder, *more):
    return tune(
        *(cells, "compare", "--output", str(folder), "--tuned", str(whole / "tuned.toml")),
        *("--num-supernodes", "4", *SHARED, *more),
    )


def test_a_comparison_takes_and_shows_what_was_tuned(monkeypatch, tmp_path, tune, whole):
    cells, folder = Cells(monkeypatch), tmp_path / "c"
    result = compared(tune, cells, whole, folder, "--seeds", "5")
    assert result.exit_code == 0, result.output
    _, own = parse_by_method([str(whole / "tuned.toml")])
    config = tomllib.loads((folder / "runs/fedprox-alpha0.1-seed5/config.toml").read_text())
    assert config.items() >= own["fedprox"].items()
    page = (folder / "comparison.md").read_text()
    assert f"learning-rate={own['fedprox']['learning-rate']}" in page
    assert (folder / "trials.csv").read_bytes() == (whole / "trials.csv").read_bytes()
    rows = [row for row in read_csv(whole / "trials.csv") if row["method"] == "fedprox"]
    values = sorted(float(row["value"]) for row in rows)
    numbers = [values[0], (values[4] + values[5]) / 2, values[-1]]
    ended = sum(row["state"] == "ended" for row in rows)
    rounds = sum(int(row["rounds"]) for row in rows)
    line = f"| FedProx | val-accuracy | 10 | {ended} | 0 | {rounds} | {rows[0]['value']} | "
    assert line + " | ".join(f"{number:.6g}" for number in numbers) + " |" in page
    assert "Tuning." in (folder / "comparison.tex").read_text()


def test_what_the_user_says_of_a_method_comes_last(monkeypatch, tmp_path, tune, whole):
    cells, folder = Cells(monkeypatch), tmp_path / "c"
    assert compared(tune, cells, whole, folder, "-c", "fedprox: fedprox.mu=0.5").exit_code == 0
    config = tomllib.loads((folder / "runs/fedprox-alpha0.1-seed0/config.toml").read_text())
    _, own = parse_by_method([str(whole / "tuned.toml")])
    assert config["fedprox.mu"] == 0.5
    assert config["learning-rate"] == own["fedprox"]["learning-rate"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-c", 'dataset="pathmnist"'], "was made for dataset=digits, and this comparison has"),
        (["-c", 'model="cnn"'], "was made for model=auto"),
        (["-c", 'partition="iid"'], "was made for partition=dirichlet"),
        (["--alphas", "0.1,0.5"], "was made for alpha=0.1, and this comparison has 0.5"),
        (["--num-supernodes", "5"], "was made for num-supernodes=4"),
        (["--strategies", "fedavg,fedsol"], "has no values for fedsol: tune it, too"),
    ],
)
def test_values_that_were_tuned_for_something_else(monkeypatch, tmp_path, tune, whole, more, said):
    cells = Cells(monkeypatch)
    result = compared(tune, cells, whole, tmp_path / "c", *more)
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert not cells.started


def test_they_are_taken_all_the_same_where_that_is_said(monkeypatch, tmp_path, tune, whole):
    arguments = ["--output", str(tmp_path / "c"), "-c", str(whole / "tuned.toml"), *SHARED]
    result = tune(Cells(monkeypatch), "compare", *arguments, "--alphas", "0.5")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("text", "trials", "said"),
    [
        (None, None, "cannot be read"),
        ("x = ", None, "cannot be read"),
        ("[methods.fedavg]\nlearning-rate = 0.1\n", None, "lacks 'tuned-for'"),
        ("[tuned-for]\n[methods]\nfedavg = 3\n", None, "cannot be read"),
        ("[tuned-for]\n[methods]\n", None, "trials.csv"),
        ("[tuned-for]\n[methods]\n", "method\nfedavg\n", 'column "trial" is not there'),
    ],
)
def test_a_file_that_tune_has_not_written(monkeypatch, tmp_path, tune, text, trials, said):
    for name, content in (("tuned.toml", text), ("trials.csv", trials)):
        if content is not None:
            (tmp_path / name).write_text(content)
    result = compared(tune, Cells(monkeypatch), tmp_path, tmp_path / "c")
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())


def test_columns_are_those_that_are_documented(whole):
    header = next(csv.reader((whole / "trials.csv").open()))
    text = (REPOSITORY / "docs" / "tune.md").read_text()
    assert all(f"`{name}`" in text for name in header if not name.startswith("best_by_"))
