"""Tables and figures that look into models: what they show, and what they say is missing."""

import re
import shutil
from dataclasses import replace

import pytest
from helpers import REPOSITORY
from reproduction_helpers import FakeFlower, page_of
from typer.testing import CliRunner

from fedadb_app.analysis import hessian, landscape
from fedadb_app.analysis.open_run import open_run
from fedadb_app.cli.main import main
from fedadb_app.reproduction import settings
from fedadb_app.reproduction.catalogue import study_of
from fedadb_app.reproduction.outputs import Reproduction
from fedadb_app.reproduction.tables import Result
from fedadb_app.reproduction.writers import write

pytestmark = pytest.mark.slow

SHORT = ["--only", "fedavg,fedadb", "--rounds", "3", "-c", "fedadb.anchor-steps=5 local-epochs=1"]
OF_FEDADB = [word.replace("fedavg,", "") for word in SHORT]


@pytest.fixture(scope="module", autouse=True)
def coarse():
    """Few images and points, for they are checked elsewhere; every second model is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hessian, "SAMPLE_SIZE", 32)
        patch.setattr(landscape, "POINTS", 3)
        patch.setattr(settings, "_SMALL_ROUNDS", {settings.DEVICE: 20, settings.SILO: 10})
        yield


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory, data, coarse):
    """Table 5 of two methods after three real rounds, of which the second's model is kept too."""
    output = tmp_path_factory.mktemp("reproduced")
    arguments = ["--app", str(REPOSITORY), "--output", str(output), *SHORT]
    with pytest.MonkeyPatch.context() as patch:
        flower = FakeFlower(patch, real=True)
        result = CliRunner().invoke(
            main, ["reproduce", "table5", *arguments, "-c", f'data-dir="{data}"']
        )
    assert result.exit_code == 0, result.output
    assert len(flower.started) == 2
    return output


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("table5", ("| lambda1 |", "(311.00, ", "(52.27, ", "| lambda1/lambda5 |")),
        ("figure6", ("| loss of the model |", "| highest loss around it |")),
        ("figure7", ("t-SNE",)),
        ("figure8", ("round 2", "round 3", "| three components: anchor and its own class |")),
        ("figure9", ("PathMNIST, α = 0.1", "| lowest PSNR of an anchor, dB |")),
    ],
)
def test_an_item_of_models_is_written(flower, reproduced, call, item, said):
    short = SHORT if item in ("table5", "figure6") else OF_FEDADB
    result = call(item, *short, output=reproduced)
    assert result.exit_code == 0, result.output
    assert flower.started == []  # they look at the same runs
    text = page_of(reproduced / "small", item)
    for words in said:
        assert words in text


def without_models(reproduced, copy, method="*"):
    """Without the final model, that is: an earlier one is kept, and is no substitute."""
    shutil.copytree(reproduced, copy)
    for model in copy.rglob(f"{method}-alpha*/model.safetensors"):
        model.unlink()


def test_a_run_that_kept_no_model_is_named_and_the_others_are_shown(
    monkeypatch, reproduced, call, tmp_path
):
    without_models(reproduced, tmp_path / "copy", "fedadb")
    whole = page_of(reproduced / "small", "table5")
    flower = FakeFlower(monkeypatch)
    result = call("table5", "figure6", "figure5", *SHORT, output=tmp_path / "copy")
    assert result.exit_code == 1
    for item in ("table5", "figure6"):
        lines = [line for line in result.output.splitlines() if line.startswith(f"{item}: /")]
        assert len(lines) == 1
        assert "fedadb-alpha0.1-seed0 keeps no global model of round 3, only of 2" in lines[0]
    assert "Traceback" not in result.output
    assert "2 problems, named above" in result.output
    table = page_of(tmp_path / "copy" / "small", "table5")
    for before, now in zip(whole.splitlines(), table.splitlines(), strict=True):
        assert now.split("|")[:3] == before.split("|")[:3]  # FedAvg's column
    assert table.count("– (") == 3
    figure = page_of(tmp_path / "copy" / "small", "figure6")
    assert "FedAvg" in figure
    assert "FedADB" not in figure
    page_of(tmp_path / "copy" / "small", "figure5")  # needs no model
    assert flower.started == []


def test_no_model_at_all_leaves_the_page_as_it_is(monkeypatch, reproduced, call, tmp_path):
    without_models(reproduced, tmp_path / "copy")
    before = (tmp_path / "copy" / "small" / "table5.md").read_text()
    result = call("table5", *SHORT, output=tmp_path / "copy")
    assert result.exit_code == 1
    assert "2 problems, named above" in result.output  # one a method
    assert (tmp_path / "copy" / "small" / "table5.md").read_text() == before


def test_figure_9_shows_the_data_sets_of_which_there_is_a_model(reproduced, tmp_path):
    study = study_of("figure9", "full")
    (folder,) = reproduced.rglob("fedadb-alpha0.1-seed0")
    there = [Result(entry, ["a reading"], [tmp_path / entry.column]) for entry in study.entries]
    there[2] = replace(there[2], folders=[folder])
    said = []
    write(Reproduction(study, there, open_run, tmp_path, said.append))
    text = page_of(tmp_path, "figure9")
    assert "PathMNIST, α = 0.1" in text
    assert "SVHN" not in text
    assert len(said) == 2
    assert "svhn 0.1 holds no run" in said[1]


@pytest.mark.parametrize("item", ["figure7", "figure8"])
@pytest.mark.parametrize(
    ("lost", "missing", "shown"),
    [("snapshots/*/*", 2, 3), ("*", 3, 2)],
)
def test_a_stage_that_is_missing_is_named(
    monkeypatch, reproduced, call, tmp_path, item, lost, missing, shown
):
    shutil.copytree(reproduced, tmp_path / "copy")
    for model in (tmp_path / "copy").rglob(f"fedadb-alpha0.1-seed0/{lost}"):
        if model.name == "model.safetensors":
            model.unlink()
    result = call(item, *OF_FEDADB, output=tmp_path / "copy")
    assert result.exit_code == 1
    said = f"fedadb-alpha0.1-seed0 keeps no global model of round {missing}, only of {shown}"
    assert said in result.output
    assert "1 problems, named above" in result.output
    text = page_of(tmp_path / "copy" / "small", item)
    assert f"round {missing}" not in text
    if item == "figure8":
        assert f"round {shown}" in text


def moved(reproduced, copy):
    """As if the runs had been made where their data are no longer."""
    shutil.copytree(reproduced, copy)
    for path in [*copy.rglob("config.toml"), *copy.rglob("comparison.json")]:
        path.write_text(re.sub(r'(data-dir"?[:=]? =? ?)".*"', rf'\1"{copy}"', path.read_text()))
        assert f'"{copy}"' in path.read_text()


def test_without_the_data_models_cannot_be_looked_at(monkeypatch, reproduced, tmp_path):
    moved(reproduced, tmp_path / "copy")
    arguments = ["--app", str(REPOSITORY), "--output", str(tmp_path / "copy"), *SHORT]
    result = CliRunner().invoke(main, ["reproduce", "table5", *arguments])
    assert result.exit_code == 1
    assert 'dataset="pathmnist"' in result.output
    assert "does not exist on this machine" in result.output
    assert "1 problems, named above" in result.output
    assert "Traceback" not in result.output


def test_the_data_may_lie_elsewhere_by_now(monkeypatch, reproduced, call, tmp_path):
    moved(reproduced, tmp_path / "copy")
    flower = FakeFlower(monkeypatch)
    result = call("table5", *SHORT, output=tmp_path / "copy")
    assert result.exit_code == 0, result.output
    assert flower.started == []
    assert page_of(tmp_path / "copy" / "small", "table5") == page_of(reproduced / "small", "table5")
