"""What fails, is damaged or is missing: named once, and everything else is written."""

import shutil

import pytest
from helpers import REPOSITORY, read_csv
from reproduction_helpers import BASE, page_of
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.reproduction.catalogue import study_of


@pytest.mark.parametrize("end", ["failed", "stopped", "refused"])
def test_a_failed_run_is_named_and_the_rest_is_written(flower, call, tmp_path, end):
    lost = f"{BASE}-num-server-rounds-60-use-lcb-false/fedadb-alpha0.1-seed1"
    flower.ends[lost] = end
    result = call("table3")
    assert result.exit_code == 1
    assert f"table3: {lost}: " in result.output
    assert "1 problems, named above" in result.output
    rows = {row["row"]: row for row in read_csv(tmp_path / "out" / "small" / "table3.csv")}
    assert {name: row["runs"] for name, row in rows.items()} == {
        "fedavg": "3",
        "use-anchors=false": "3",
        "use-lcb=false": "2",
        "fedadb": "3",
    }
    assert "1 of 12 runs are missing." in page_of(tmp_path / "out" / "small", "table3")
    flower.ends.clear()
    flower.started.clear()
    assert call("table3").exit_code == 0
    assert flower.started == [lost]
    assert "missing" not in page_of(tmp_path / "out" / "small", "table3")


def test_a_run_that_is_another_one_is_named_and_not_counted(flower, call, tmp_path):
    folder = tmp_path / "out" / "small"
    assert call("table4").exit_code == 0
    before = flower.started.copy()
    right, wrong = (
        folder / f"{BASE}-num-server-rounds-20-beta-{beta}" / "runs" / "fedadb-alpha0.1-seed0"
        for beta in ("0.9", "0.1")
    )
    shutil.rmtree(right)
    shutil.copytree(wrong, right)
    for missing in (0, 1):  # whether or not something is to be run beside it
        result = call("table4", "--seeds", "0,1" if missing else "0")
        assert result.exit_code == 1
        said = f'{right} holds another run: its config.toml says fedadb.beta = "0.1", asked for is '
        assert f'{right.parts[-3]}/{right.name}: {said}"0.9"' in result.output
        assert "1 problems, named above" in result.output
        rows = {row["row"]: row["runs"] for row in read_csv(folder / "table4.csv")}
        assert rows["beta=0.9"] == str(missing)
        assert rows["beta=0.1"] == str(1 + missing)
    assert not [run for run in flower.started[len(before) :] if run.endswith("seed0")]


@pytest.mark.parametrize("text", ["{}", '{"run-config": {'])
def test_a_bad_comparison_costs_its_item_only(flower, call, tmp_path, text):
    folder = tmp_path / "out" / "small"
    bad = folder / f"{BASE}-num-server-rounds-20" / "comparison.json"
    bad.parent.mkdir(parents=True)
    bad.write_text(text)
    result = call("table4", "figure5")
    assert result.exit_code == 1
    assert f"table4: {bad} cannot be read" in result.output
    assert "1 problems, named above" in result.output
    assert "Traceback" not in result.output
    assert not (folder / "table4.md").exists()
    assert {run.split("/")[0] for run in flower.started} == {BASE}  # nothing of table4 alone
    page_of(folder, "figure5")
    assert bad.read_text() == text


def test_an_unreadable_run_does_not_keep_others_from_running(flower, call, tmp_path):
    assert call("table1").exit_code == 0
    folder = tmp_path / "out" / "small"
    (folder / "cross-silo-pathmnist/runs/fedavg-alpha0.1-seed0/rounds.csv").unlink()
    shutil.rmtree(folder / "cross-silo-pathmnist/runs/fedadb-alpha0.1-seed0")
    flower.started.clear()
    result = call("table1", "figure4")
    assert result.exit_code == 1
    assert "1 problems, named above" in result.output
    assert flower.started == ["cross-silo-pathmnist/fedadb-alpha0.1-seed0"]
    assert "1 of 22 runs are missing." in page_of(folder, "table1")
    page_of(folder, "figure4")


def test_a_run_that_lacks_rounds_is_named_and_does_not_count(flower, call, tmp_path):
    assert call("table2").exit_code == 0
    (rounds,) = (tmp_path / "out").rglob("feddyn-alpha0.1-seed0/rounds.csv")
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:30]))
    result = call("table2")
    assert result.exit_code == 1
    assert f"{rounds} does not hold the whole run: it says rounds = 29" in result.output
    assert "1 of 11 runs are missing." in page_of(tmp_path / "out" / "small", "table2")


@pytest.mark.parametrize("item", ["figure2", "figure4", "table1", "table2", "table4"])
def test_an_unfinished_item_shows_what_there_is(flower, call, tmp_path, item):
    """As after a killed machine: but for two runs, nothing could be started."""
    study = study_of(item, "small")
    names = list(dict.fromkeys(f"{e.setting.name}/{e.strategy}" for e in study.entries))
    flower.ends = {f"{name}-alpha0.1-seed0": "refused" for name in names[1:-1]}
    result = call(item)
    assert result.exit_code == 1
    text = page_of(tmp_path / "out" / "small", item)
    assert f"{len(names) - 2} problems" in result.output
    assert f"{len(names) - 2} of {len(names)} runs are missing." in text


def test_nothing_complete_writes_nothing(flower, call, tmp_path):
    flower.ends = {f"{BASE}/{m}-alpha0.1-seed0": "failed" for m in ("fedavg", "fedlmd")}
    result = call("figure5", "--only", "fedavg,fedlmd")
    assert result.exit_code == 1
    assert "figure5: no run is complete, so there is nothing to write" in result.output
    assert not (tmp_path / "out" / "small" / "figure5.md").exists()


def test_a_missing_data_set_is_named_once(flower, call, data, tmp_path):
    """Nothing is started on it; what needs another one is written."""
    result = call("table6", "table1", "--scale", "full", "--only", "pacs,pathmnist,fedadb")
    assert result.exit_code == 1
    assert result.output.count('dataset="pacs"') == 1
    assert str(data / "pacs") in result.output
    assert not [run for run in flower.started if "pacs" in run]
    assert not (tmp_path / "out" / "full" / "table6.md").exists()
    page_of(tmp_path / "out" / "full", "table1")


def test_a_download_that_fails_is_said_once_an_item(flower, tmp_path, monkeypatch):
    tried = []

    def offline(*arguments):
        tried.append(arguments)
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", offline)
    arguments = ["--app", str(REPOSITORY), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(
        main, ["reproduce", "table4", *arguments, "-c", f'data-dir="{tmp_path}"']
    )
    assert result.exit_code == 1
    assert tried
    assert result.output.count("no route to host") == 1
    assert flower.started == []
