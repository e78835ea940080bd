"""What `fedadb reproduce` runs, and what it writes from runs' curves."""

import numpy as np
import pytest
from helpers import read_csv
from PIL import Image
from reproduction_helpers import BASE, page_of

from fedadb_app.comparison.readings import read_run
from fedadb_app.reproduction.catalogue import STUDIES, study_of
from fedadb_app.reproduction.entries import only

NUMBERS_ONLY = ("table1", "table2", "table3", "table4", "table6", "figure2", "figure3", "figure4")
NEED_MODELS = ("table5", "figure6", "figure7", "figure8", "figure9")


@pytest.mark.parametrize("item", [*NUMBERS_ONLY, "figure5"])
def test_an_item_of_curves_is_written(flower, call, tmp_path, item):
    result = call(item)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "out" / "small"
    study = study_of(item, "small")
    assert str(folder / f"{item}.md") in result.output
    text = page_of(folder, item)
    assert study.changed in text
    assert study.rounds in text
    wanted = len(study_of(item, "full").seeds)
    one_for_three = len(study.seeds) < wanted
    assert ("Number of seeds: 1 instead of 3." in text) == one_for_three
    assert one_for_three == (item not in ("table3", "figure5"))
    assert "missing" not in text
    if item in ("figure2", "figure3"):  # the default is a red dot before the line of each panel
        pixels = np.asarray(Image.open(folder / f"{item}.png").convert("RGB")).astype(int)
        red = (pixels[..., 0] > 250) & (pixels[..., 1:].max(-1) < 5)
        panels = 3 if item == "figure2" else 4
        assert all(part.any() for part in np.array_split(red, panels, axis=1))
    assert len(flower.started) == len(set(flower.started))
    assert len(flower.started) == len({e.setting.name + e.strategy for e in study.entries}) * len(
        study.seeds
    )
    again = call(item)
    assert again.exit_code == 0, again.output
    assert page_of(folder, item) == text
    assert len(flower.started) == len(set(flower.started))  # nothing anew


def test_the_numbers_beside_the_papers(flower, call, tmp_path):
    assert call("table3").exit_code == 0
    rows = {row["row"]: row for row in read_csv(tmp_path / "out" / "small" / "table3.csv")}
    # 60 rounds to 58, 59 and 60 %: the best five are 60 … 56 of 60, 58/60 of the last
    assert rows["fedadb"]["ours"] == f"{59 * 58 / 60:.2f}"
    assert rows["fedadb"]["deviation"] == f"{58 / 60:.2f}"
    assert rows["fedadb"]["paper"] == "59.21"
    assert rows["fedadb"]["difference"] == f"{59 * 58 / 60 - 59.21:.2f}"
    assert rows["use-anchors=false"]["runs"] == "3"
    text = page_of(tmp_path / "out" / "small", "table3")
    assert "| FedADB | 57.03 ± 0.97 (59.21, -2.18) |" in text
    assert "Seeds: 0, 1, 2." in text


def test_a_call_says_on_the_page_what_it_changed(flower, call, tmp_path):
    arguments = ["table3", "--only", "fedavg", "--rounds", "7", "--seeds", "4", "-c"]
    result = call(*arguments, "learning-rate=0.02")
    assert result.exit_code == 0, result.output
    assert flower.started == [f"{BASE}-num-server-rounds-7/fedavg-alpha0.1-seed4"]
    text = page_of(tmp_path / "out" / "small", "table3")
    said_by_call = ("Only fedavg.", "Number of seeds: 1 instead of 3.", "All runs have 7 rounds.")
    for said in (*said_by_call, "learning-rate=0.02", "Seeds: 4."):
        assert said in text
    assert "FedADB" not in text
    assert "60 rounds" not in text  # the study's own length, which the call has changed


@pytest.mark.parametrize(("rounds", "short"), [(2, True), (4, True), (5, False)])
def test_the_best_five_of_fewer_rounds_are_said_to_be_all(flower, call, tmp_path, rounds, short):
    assert call("table3", "--rounds", str(rounds), "--seeds", "0").exit_code == 0
    text = page_of(tmp_path / "out" / "small", "table3")
    assert ("(of all, if it has fewer)" in text) == short


def test_a_run_is_read_once(flower, call, monkeypatch):
    read = []

    def counting(cell, folder):
        read.append(folder)
        return read_run(cell, folder)

    monkeypatch.setattr("fedadb_app.comparison.running.read_run", counting)
    for _ in range(2):  # as they are made, and when all are there
        read.clear()
        assert call("table1", "figure4", "table2", "--only", "fedavg,fedadb").exit_code == 0
        assert len(read) == len(set(read)) == 4  # two methods, two scenarios


def test_full_scale_is_kept_apart(flower, call, tmp_path):
    result = call("figure9", "table1", "--scale", "full", "--only", "pathmnist,fedadb")
    assert result.exit_code == 1  # made-up runs have no models
    assert flower.started == [
        f"{BASE}/fedadb-alpha0.1-seed0",
        f"{BASE}/fedadb-alpha0.1-seed1",
        f"{BASE}/fedadb-alpha0.1-seed2",
        *(f"cross-silo-pathmnist/fedadb-alpha0.1-seed{seed}" for seed in range(3)),
    ]
    assert (tmp_path / "out" / "full" / "table1.md").exists()
    assert not (tmp_path / "out" / "small").exists()


@pytest.mark.slow
def test_all_runs_what_items_share_once(flower, call, tmp_path):
    result = call("all", "--only", "fedadb")
    assert result.exit_code == 1  # made-up runs have no models
    assert len(flower.started) == len(set(flower.started))
    wanted = {
        f"{e.setting.name}/fedadb-alpha0.1-seed{seed}"
        for study in only([study_of(item, "small") for item in STUDIES], ["fedadb"])
        for e in study.entries
        for seed in study.seeds
    }
    assert set(flower.started) == wanted
    for item in STUDIES:
        assert (tmp_path / "out" / "small" / f"{item}.md").exists() == (item not in NEED_MODELS)
    assert "5 problems" in result.output
