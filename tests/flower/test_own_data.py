"""Hospitals: real SuperNodes that hold skewed folders of their own, one of them broken at first.

They train a pretrained ResNet-50 of torchvision, each fine-tunes it, and all get it as ONNX.
"""

import contextlib
import json
import time

import numpy as np
import onnxruntime
import pytest
import torch
import torchvision
from helpers import read_csv
from inference.conftest import command
from PIL import Image

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]

CLASSES = ("benign", "malignant", "normal")
HOSPITALS = {"a": {"benign": 20, "malignant": 5}, "b": {"normal": 15}, "c": {"benign": 10}}


def write_images(folder, classes):
    rng = np.random.default_rng(0)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 100, (28, 28), np.uint8)
            pixels[9 * CLASSES.index(name) :][:9] += 100
            Image.fromarray(pixels).save(folder / name / f"patient-{i:02}.png")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("hospitals")


@pytest.fixture(scope="module")
def weights(root):
    """A file as torchvision publishes it, of a thousand classes; here they are drawn."""
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet50().state_dict(), root / "resnet50.pth")
    return root / "resnet50.pth"


@pytest.fixture(scope="module")
def run(deployment, root, weights):
    """Four rounds; hospital c mends its data once the first is over."""
    for name, classes in HOSPITALS.items():
        write_images(root / name, classes)
    odd = root / "c" / "benign" / "patient-03.png"
    good = odd.read_bytes()
    odd.write_bytes(good[: len(good) // 2])
    with contextlib.ExitStack() as stack:
        for name in HOSPITALS:
            stack.enter_context(deployment.hospital(root / name))
        submitted = deployment.submit(
            f'dataset="nodes" classes="{",".join(CLASSES)}" image-shape="1x28x28" '
            f'model="torchvision:resnet50" weights="{weights}" fedadb.anchor-steps=2 '
            f'evaluate="clients" min-nodes=2 num-server-rounds=4 local-epochs=1 '
            f"personalise-epochs=1"
        )
        while submitted.summary_status() in {"", "running"}:
            folder = submitted.folder()
            summary = folder / "summary.json" if folder else None
            if summary and summary.exists() and json.loads(summary.read_text())["rounds"] >= 1:
                break
            time.sleep(0.5)
        odd.write_bytes(good)
        yield deployment.wait(submitted)


def test_the_run_goes_on_without_the_broken_hospital(run):
    assert run.status == "finished:completed", run.details
    assert run.column("clients")[0] == "2"
    assert run.column("failures") == ["0"] * 4
    assert all(run.column("accuracy"))
    assert not (run.folder / "class_accuracy.csv").exists()


def test_the_broken_hospital_comes_back_when_its_data_are_mended(run):
    assert run.column("clients")[-1] == "3"
    manifest = run.partition()
    assert manifest["rule"] == "nodes"
    assert sorted(client["size"] for client in manifest["clients"]) == [8, 12, 20]


def test_what_is_wrong_is_said_at_the_node_only(deployment, run):
    log = deployment.log(run.run_id)
    assert " is left out: its data cannot be used; its own log says why" in log
    assert "patient-03" not in log
    nodes = deployment.said("supernode")
    assert "c/benign/patient-03.png cannot be read as an image: image file is truncated" in nodes
    assert "{'benign': 8, 'malignant': 0, 'normal': 0}; held out: 2" in nodes


def test_class_accuracies_are_said_at_the_nodes_only(deployment, run):
    assert "correct on this node: benign" in deployment.said("supernode")
    assert "on this node: " not in deployment.log(run.run_id)


def said_of_images(folder, images, tmp_path):
    """Return what `fedadb predict` says of a folder of images: their files, and probabilities."""
    code, said = command("predict", folder, images, "--output", tmp_path / "p.csv")
    assert code == 0, said
    rows = read_csv(tmp_path / "p.csv")
    return [row["file"] for row in rows], [[float(row[f"p:{c}"]) for c in CLASSES] for row in rows]


def test_the_model_goes_out_as_one_file_that_says_the_same(run, root, tmp_path):
    words = ("--images", root / "a", "--output", tmp_path / "model.onnx")
    code, said = command("export", run.folder, *words)
    assert code == 0, said
    assert "as PyTorch on 25 images" in said
    files, expected = said_of_images(run.folder, root / "a", tmp_path)
    images = np.stack([np.asarray(Image.open(root / "a" / file)) for file in files])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {"images": images[..., None]})
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found.argmax(axis=1).tolist() == np.argmax(expected, axis=1).tolist()
    assert len(run.summary()["weights"]) == 64


def test_each_hospital_keeps_a_model_of_its_own(deployment, run, root, tmp_path):
    rows = read_csv(run.folder / "personalised.csv")
    sites = sorted({row["site"] for row in rows}, key=int)
    assert [(row["site"], row["head"]) for row in rows] == [
        (site, head) for site in sites for head in ("agb", "lcb")
    ]
    assert len(sites) == 3
    logs, models = deployment.said("supernode"), []
    for site in sites:
        folder = deployment.home / "fedadb-runs" / f"personalised-{run.run_id}-client-{site}"
        assert f"the personalised model of this node: {folder}" in logs
        models.append(said_of_images(folder, root / "a", tmp_path)[1])
    assert str(folder.parent) not in deployment.log(run.run_id)
    shared = said_of_images(run.folder, root / "a", tmp_path)[1]
    assert len({str(probabilities) for probabilities in (*models, shared)}) == 4
