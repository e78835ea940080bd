"""`fedadb export`: one file that says what PyTorch says, and its particulars."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from helpers import read_csv, serve
from image_files import picture
from inference.conftest import command, taken_away
from safetensors import safe_open
from safetensors.torch import save_file

from fedadb_app.analysis.open_run import open_run
from fedadb_app.inference import export
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.registry import METHODS

WITHOUT_TORCH = """
import sys, csv, json, numpy as np, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = session.get_modelmeta().custom_metadata_map
images = np.load(sys.argv[2])
found = np.concatenate([session.run(None, {"images": images[:1]})[0],
                        session.run(None, {"images": images[1:]})[0]])
assert not {"torch", "fedadb_app", "flwr"} & set(sys.modules)
np.save(sys.argv[3], found)
print(json.dumps(facts))
"""


def another_model(run: Path, target: Path, model: str, strategy="fedavg", channels=1, side=28):
    """A run's folder with another, untrained net: what an export sees is the same."""
    taken_away(run, target)
    config = target / "config.toml"
    text = config.read_text().replace('model = "lenet"', f'model = "{model}"')
    config.write_text(text.replace('strategy = "fedavg"', f'strategy = "{strategy}"'))
    inputs = json.loads((target / "model.json").read_text())
    inputs["image-shape"] = [channels, side, side]
    (target / "model.json").write_text(json.dumps(inputs))
    opened = open_run(target)
    spec = ModelSpec.of(opened.config, opened.inputs.images)
    net = build_classifier(spec, 5, METHODS[strategy].heads)
    torch.manual_seed(0)
    for name, buffer in net.named_buffers():  # statistics as of a trained net
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
        elif name.endswith("running_mean"):
            buffer.normal_()
    save_file(net.state_dict(), target / "model.safetensors")
    return target


def says_the_same(run, images, tmp_path, python, compared=180):
    """Export, then compare ONNX Runtime in a process of its own with `fedadb predict`."""
    code, said = command("export", run, "--images", images, "--output", tmp_path / "m.onnx")
    assert code == 0, said
    assert f"as PyTorch on {compared} images" in said
    shape = open_run(run).inputs.image_shape
    images = np.random.default_rng(0).integers(0, 256, (9, *shape[1:], shape[0]), np.uint8)
    np.save(tmp_path / "images.npy", images)
    np.savez(tmp_path / "images.npz", images=images)
    words = (tmp_path / "m.onnx", tmp_path / "images.npy", tmp_path / "found.npy")
    script = tmp_path / "use.py"
    script.write_text(WITHOUT_TORCH)
    told = subprocess.run(
        [python, "-I", str(script), *map(str, words)], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert command("predict", run, tmp_path / "images.npz", "--output", tmp_path / "p.csv")[0] == 0
    rows = read_csv(tmp_path / "p.csv")
    names = [key.removeprefix("p:") for key in rows[0] if key.startswith("p:")]
    expected = np.array([[float(row[f"p:{name}"]) for name in names] for row in rows])
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert [names[c] for c in found.argmax(1)] == [row["class"] for row in rows]
    return json.loads(told.stdout)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A Python with ONNX Runtime and NumPy, and neither PyTorch nor this app."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "onnxruntime", "numpy"]
    if subprocess.run(install, capture_output=True).returncode:
        warnings.warn("no network to install ONNX Runtime from: ours is used", stacklevel=1)
        return sys.executable
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    return python


@pytest.mark.slow
def test_onnx_alone_says_what_pytorch_says(digits_run, digits_test, elsewhere, tmp_path, alone):
    run = taken_away(digits_run, elsewhere)
    facts = says_the_same(run, digits_test, tmp_path, alone)
    assert json.loads(facts["class_names"]) == [str(c) for c in range(10)]
    assert facts["input"] == "uint8 (N, 28, 28, 1), 0 to 255, grey"
    assert (json.loads(facts["mean"]), json.loads(facts["std"])) == ([0.5], [0.5])
    assert facts["architecture"] == "lenet"
    assert len(facts["model_sha256"]) == 64
    assert facts["compared"].startswith("180 images, largest difference")
    assert (tmp_path / "MODEL_CARD.md").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # minutes, for 86 million parameters on a busy machine
@pytest.mark.parametrize(
    ("model", "strategy", "channels", "side"),
    [
        ("resnet8", "fedadb", 3, 28),  # of two heads one is exported
        ("resnet18", "fedavg", 3, 28),
        ("torchvision:convnext_tiny", "fedavg", 3, 28),
        ("torchvision:vit_b_16", "fedavg", 1, 28),  # made RGB, and resized to 224 pixels inside
    ],
)
def test_other_nets(digits_run, digits_test, tmp_path, alone, model, strategy, channels, side):
    run = another_model(digits_run, tmp_path / "run", model, strategy, channels, side)
    few = sorted((digits_test / "3").iterdir())[:9]
    (tmp_path / "few.txt").write_text("\n".join(map(str, few)))
    says_the_same(run, tmp_path / "few.txt", tmp_path, alone, compared=9)


HOSPITALS = {
    "a": {"benign": 5, "malignant": 3},
    "b": {"normal": 4},
    "c": {"benign": 3, "normal": 2},
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_hospitals_and_a_pretrained_resnet50(tmp_path, alone):
    """From folders of images and torchvision's file to one ONNX file, two rounds in between.

    The real apps, in one process: a ResNet-50 sent through a SuperLink of this machine costs
    minutes and shows of it what `tests/flower/test_ten_nodes.py` shows.
    """
    torch.manual_seed(0)  # a file as torchvision publishes it, of a thousand classes
    torch.save(torchvision.models.resnet50().state_dict(), tmp_path / "resnet50.pth")
    for number, (hospital, classes) in enumerate(HOSPITALS.items()):
        for name, count in classes.items():
            for i in range(count):
                value = 20 + 60 * ("benign", "malignant", "normal").index(name) + 5 * i + number
                picture(tmp_path / hospital / name / f"patient-{i}.png", value, size=(32, 32))
    values = {
        **{"strategy": "fedavg", "model": "torchvision:resnet50", "device": "cpu"},
        **{"weights": str(tmp_path / "resnet50.pth"), "image-shape": "3x32x32", "dataset": "nodes"},
        **{"classes": "benign,malignant,normal", "evaluate": "clients", "min-nodes": 3},
        **{"num-server-rounds": 2, "local-epochs": 1, "batch-size": 4, "learning-rate": 0.001},
        **{"output-dir": str(tmp_path / "runs"), "run-name": "run"},
    }
    nodes = {100 + k: {"data-path": str(tmp_path / h)} for k, h in enumerate(HOSPITALS)}
    serve(values, nodes=nodes)
    run = tmp_path / "runs" / "run"
    rows = read_csv(run / "rounds.csv")
    assert [(row["clients"], row["failures"]) for row in rows] == [("3", "0")] * 2
    assert len(json.loads((run / "summary.json").read_text())["weights"]) == 64
    facts = says_the_same(run, tmp_path / "a" / "benign", tmp_path, alone, compared=5)
    assert json.loads(facts["class_names"]) == ["benign", "malignant", "normal"]
    assert facts["architecture"] == "torchvision:resnet50"


def test_safetensors_with_one_head_and_particulars(digits_run, tmp_path):
    run = another_model(digits_run, tmp_path / "run", "lenet", "fedadb")
    code, said = command("export", run, "--format", "safetensors")
    assert code == 0, said
    with safe_open(run / "final.safetensors", "pt") as file:
        kept, facts = set(file.keys()), file.metadata()
        weight = file.get_tensor("head.weight")
    model = open_run(run).whole_model("model.safetensors")
    assert kept == {k for k in model.state_dict() if k.startswith("features.")} | {
        *("head.weight", "head.bias")
    }
    assert torch.equal(weight, model.heads["agb"].weight)
    assert facts["strategy"] == "fedadb"


def test_what_differs_from_pytorch_is_not_written(digits_run, digits_test, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_converted", lambda *given: b"")
    monkeypatch.setattr("onnxruntime.InferenceSession", OneAnswer)
    words = ("--images", digits_test, "--output", tmp_path / "m.onnx")
    code, said = command("export", digits_run, *words)
    assert code == 1
    assert "differs from PyTorch (180 images, largest difference of a probability" in said
    assert list(tmp_path.iterdir()) == []


class OneAnswer:
    """A session that takes every image for a nought."""

    def __init__(self, *given, **named):
        pass

    def run(self, names, given):
        return [np.eye(10, dtype=np.float32)[np.zeros(len(given["images"]), int)]]


def test_a_net_that_onnx_cannot_hold_is_refused(digits_run, digits_test, tmp_path, monkeypatch):
    def fail(*given, **named):
        raise torch.onnx.OnnxExporterError("no such operator\nand a long story")

    monkeypatch.setattr("torch.onnx.export", fail)
    words = ("--images", digits_test, "--output", tmp_path / "m.onnx")
    code, said = command("export", digits_run, *words)
    assert code == 1
    assert "cannot be written as ONNX: no such operator" in said
    assert said.count("\n") == 1


def test_what_is_refused(digits_run, digits_test, elsewhere, tmp_path, monkeypatch):
    run = another_model(digits_run, elsewhere, "resnet8")
    config = run / "config.toml"
    text = config.read_text()
    config.write_text(text.replace('norm = "batch"', 'norm = "batch-local"'))
    for form in ("onnx", "safetensors"):
        code, said = command("export", run, "--format", form, "--images", digits_test)
        assert code == 1
        assert 'exporting is not possible with norm="batch-local"' in said
    gone = text.replace('dataset = "digits"', 'dataset = "/no/such/folder"')
    config.write_text(gone)
    code, said = command("export", run)
    assert code == 1
    assert "give some with --images" in said
    picture(tmp_path / "one.png", 3)
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, said = command("export", run, "--images", tmp_path / "one.png")
    assert code == 1
    assert 'pip install "fedadb-app[export]"' in said
