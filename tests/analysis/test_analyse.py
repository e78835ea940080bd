"""`fedadb analyse`: what it writes of a run, its numbers, and what a person may get wrong."""

import shutil

import numpy as np
import pytest
import torch
from helpers import read_csv, serve
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional as F
from typer.testing import CliRunner

from fedadb_app.analysis import hessian, landscape
from fedadb_app.analysis.open_run import open_run
from fedadb_app.cli.main import main
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS

FILES = {
    "hessian": {"hessian.csv", "landscape.csv", "landscape.png"},
    "embeddings": {
        *("tsne.csv", "tsne.png", "pca.csv", "pca.png"),
        *("correlation-pca.csv", "correlation-features.csv"),
    },
    "anchors": {"anchors.csv", "anchors.png"},
    "drift": {"drift.csv", "drift.png"},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quadrants):
    """A run of FedADB of three rounds that keeps the models of the last two."""
    folder = tmp_path_factory.mktemp("runs")
    values = {
        **{"strategy": "fedadb", "dataset": quadrants, "partition": "iid", "device": "cpu"},
        **{"num-server-rounds": 3, "local-epochs": 1, "model": "lenet", "snapshot-every": 2},
        **{"fedadb.anchor-steps": 2, "output-dir": str(folder), "run-name": "run"},
    }
    serve(values)
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Few images and points; their numbers are checked elsewhere."""
    monkeypatch.setattr(landscape, "POINTS", 3)
    monkeypatch.setattr(hessian, "SAMPLE_SIZE", 40)
    monkeypatch.setattr(hessian, "_TOLERANCE", 0.01)


def analyse(*arguments):
    return CliRunner().invoke(main, ["analyse", *map(str, arguments)])


def written(run):
    folder = run / "analysis"
    return {str(path.relative_to(folder)) for path in folder.rglob("*.*")}


def said(result, name):
    """The numbers of a read-out, by what they are."""
    lines = [line for line in result.output.splitlines() if line.startswith(f"{name}: ")]
    pairs = [line.removeprefix(f"{name}: ").rsplit(" ", 1) for line in lines]
    return {what: float(value) for what, value in pairs}


def of_round(number, *names):
    return {f"round{number:04}/{file}" for name in names for file in FILES[name]}


# --- what it writes -------------------------------------------------------------------------


@pytest.mark.slow
def test_all_that_applies_to_the_last_model(run, quadrants):
    result = analyse(run)
    assert result.exit_code == 0, result.output
    assert written(run) == FILES["drift"] | of_round(3, "hessian", "embeddings", "anchors")
    assert f"{run / 'analysis' / 'round0003'}, {run / 'analysis'}" in result.output
    for picture in (run / "analysis").rglob("*.png"):
        with Image.open(picture) as image:
            image.load()

    # the loss and the accuracy of the model, on the sample of the training set
    model = build_classifier(
        ModelSpec("lenet", "batch", (1, 28, 28), 4), 0, METHODS["fedadb"].heads
    )
    model.load_state_dict(load_file(run / "model.safetensors"))
    data, drawn = np.load(quadrants), hessian.training_sample(open_run(run)).positions
    images = torch.from_numpy(data["train_images"][drawn, None] / 127.5 - 1).float()
    labels = torch.from_numpy(data["train_labels"][drawn, 0])
    with torch.no_grad():
        logits = model.eval()(images)
    centre = read_csv(run / "analysis" / "round0003" / "landscape.csv")[4]
    assert (float(centre["a"]), float(centre["b"])) == (0, 0)
    assert float(centre["loss"]) == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    accuracy = float(100 * (logits.argmax(1) == labels).double().mean())
    assert float(centre["accuracy"]) == pytest.approx(accuracy)
    eigenvalues = [
        float(row["eigenvalue"]) for row in read_csv(run / "analysis" / "round0003" / "hessian.csv")
    ]
    assert len(eigenvalues) == 5
    assert eigenvalues == sorted(eigenvalues, reverse=True)
    assert said(result, "hessian") == pytest.approx(
        {
            "lambda1": eigenvalues[0],
            "lambda1/lambda5": eigenvalues[0] / eigenvalues[4],
            "training accuracy, %": accuracy,
        },
        rel=1e-3,
    )


def test_anchors_of_an_earlier_round_are_those_that_the_next_was_trained_with(run, quadrants):
    result = analyse(run, "--round", 2, "--what", "anchors")
    assert result.exit_code == 0, result.output
    assert written(run) == of_round(2, "anchors")
    sent = load_file(run / "anchors.safetensors")  # of round 3, the last
    pixels = ((sent["images"][:, 0].double() + 1) * 127.5).round().numpy()
    data = np.load(quadrants)
    rows = read_csv(run / "analysis" / "round0002" / "anchors.csv")
    assert len(rows) == len(pixels)
    psnr = []
    for row, anchor, label in zip(rows, pixels, sent["labels"].tolist(), strict=True):
        errors = ((data["train_images"] - anchor) ** 2).mean(axis=(1, 2))
        psnr.append(10 * np.log10(255**2 / errors.min()))
        assert float(row["psnr"]) == pytest.approx(psnr[-1])
        assert int(row["nearest_image"]) == errors.argmin()
        assert row["class"] == str(label)
    found = said(result, "anchors")
    assert found["highest PSNR of an anchor, dB"] == pytest.approx(max(psnr), rel=1e-3)
    quality = float(read_csv(run / "rounds.csv")[2]["anchor_quality"])
    assert found["anchor quality tau"] == pytest.approx(quality, rel=1e-3)


def test_correlations_and_places(run):
    result = analyse(run, "--what", "embeddings")
    assert result.exit_code == 0, result.output
    assert written(run) == of_round(3, "embeddings")
    folder = run / "analysis" / "round0003"
    for name, axes in (("tsne.csv", 2), ("pca.csv", 3)):
        rows = read_csv(folder / name)
        assert [row["kind"] for row in rows] == ["real"] * 80 + ["anchor"] * 4
        assert len(rows[0]) == 2 + axes
    pairs = read_csv(folder / "correlation-features.csv")
    own = np.mean([float(pair["r"]) for pair in pairs if pair["anchor"] == pair["centre"]])
    found = said(result, "embeddings")
    assert found["r with the own class (features)"] == pytest.approx(own, rel=1e-3)


def test_drift_is_over_all_rounds(run):
    result = analyse(run, "--what", "drift")
    assert result.exit_code == 0, result.output
    assert written(run) == FILES["drift"]
    rows = read_csv(run / "analysis" / "drift.csv")
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    kept = [r for r in read_csv(run / "diagnostics.csv") if r["name"] == "client_drift"]
    values = [float(row["value"]) for row in kept]
    assert [float(row["client_drift"]) for row in rows] == values
    mean = said(result, "drift")["client_drift, mean over rounds"]
    assert mean == pytest.approx(sum(values) / 3, rel=1e-3)


@pytest.mark.slow
def test_a_method_without_anchors(values, tmp_path):
    serve({**values, "model": "lenet"})
    run = tmp_path / "runs" / "run"
    result = analyse(run)
    assert result.exit_code == 0, result.output
    assert written(run) == FILES["drift"] | of_round(2, "hessian")
    result = analyse(run, "--what", "anchors, drift")
    assert result.exit_code == 1
    assert "anchors: " in result.output
    assert 'the run made no anchors (strategy="fedavg")' in result.output
    assert "drift: client_drift" in result.output
    assert f"pictures and tables: {run / 'analysis'}\n" in result.output  # where nothing failed
    assert "1 of 2 read-outs could not be made" in result.output


# --- a run that is not finished, or whose data lie elsewhere --------------------------------


def test_an_unfinished_run(run):
    (run / "model.safetensors").unlink()
    result = analyse(run, "--what", "anchors")
    assert result.exit_code == 0, result.output
    assert written(run) == of_round(2, "anchors")

    shutil.rmtree(run / "snapshots")
    result = analyse(run)
    assert result.exit_code == 1
    assert "keeps no global model yet" in result.output
    assert result.output.count("\n") == 1
    assert analyse(run, "--what", "drift").exit_code == 0
    assert FILES["drift"] <= written(run)


def test_a_data_set_that_lies_elsewhere(run, quadrants):
    path = run / "config.toml"
    path.write_text(path.read_text().replace(quadrants, "/nowhere/quadrants.npz"))
    result = analyse(run, "--what", "anchors,drift")
    assert result.exit_code == 1
    assert 'dataset="/nowhere/quadrants.npz": there is no such file' in result.output
    assert "1 of 2 read-outs could not be made" in result.output
    assert written(run) == FILES["drift"]

    here = quadrants.removesuffix("/quadrants.npz")
    result = analyse(run, "--what", "anchors", "--data-dir", here)
    assert result.exit_code == 0, result.output
    assert of_round(3, "anchors") <= written(run)


# --- what a person may get wrong ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--round", 1], "keeps no global model of round 1, only of 2, 3; snapshot-every"),
        (["--round", -1], "keeps no global model of round -1, only of 2, 3"),
        (["--what", "sharpness"], "--what sharpness: choose among hessian, embeddings, anchors"),
        (["--what", "drift,anchor"], "--what anchor: choose among"),
    ],
)
def test_a_mistake_gets_one_sentence_before_anything_is_written(run, arguments, sentence):
    result = analyse(run, *arguments)
    assert result.exit_code == 1
    assert sentence in result.output
    assert result.output.count("\n") == 1
    assert not (run / "analysis").exists()


def test_a_folder_without_a_run(tmp_path):
    result = analyse(tmp_path)
    assert result.exit_code == 1
    assert "holds no run" in result.output


@pytest.mark.parametrize("blocked", ["analysis", "analysis/drift.csv", "analysis/drift.png"])
def test_what_cannot_be_written(run, blocked):
    if blocked == "analysis":
        (run / "analysis").touch()
    else:
        (run / blocked).mkdir(parents=True)
    result = analyse(run, "--what", "drift")
    assert result.exit_code == 1
    assert f"{run / 'analysis'} cannot be written to: " in result.output
    assert result.output.count("\n") == 1


def test_the_round_of_the_last_model_is_never_guessed(run):
    (run / "rounds.csv").unlink()
    result = analyse(run)
    assert result.exit_code == 1
    assert "of which round it is cannot be told, because rounds.csv is not there" in result.output
    assert result.output.count("\n") == 1
    assert not (run / "analysis").exists()
