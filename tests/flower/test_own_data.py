"""Hospitals: real SuperNodes that hold skewed folders of their own, one of them broken at first."""

import contextlib
import json
import time

import numpy as np
import pytest
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
def run(deployment, tmp_path_factory):
    """Six rounds; hospital c mends its data once the first is over."""
    root = tmp_path_factory.mktemp("hospitals")
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
            f'evaluate="clients" min-nodes=2 num-server-rounds=6 local-epochs=1 '
            f"fedadb.anchor-steps=5"
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
    assert run.column("failures") == ["0"] * 6
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
