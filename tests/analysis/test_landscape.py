"""The loss surface against the model's own loss, its curvature and weights moved by hand."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from torch import nn

from fedadb_app.analysis import landscape
from fedadb_app.analysis.hessian import top_eigenpairs
from fedadb_app.analysis.landscape import Surface, loss_surface, plot_surfaces
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.errors import TrainingError
from fedadb_app.evaluation import evaluate
from fedadb_app.models.classifier import ImageClassifier

CONFIG = RunConfig()


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, int], None]:
    """Set the radius and the points of a surface."""

    def set_both(radius: float, points: int) -> None:
        monkeypatch.setattr(landscape, "RADIUS", radius)
        monkeypatch.setattr(landscape, "POINTS", points)

    return set_both


@pytest.fixture
def data() -> LocalData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 1, 4, 4), np.uint8)
    labels = rng.integers(0, 3, 30)
    return LocalData.from_arrays(images, labels, np.arange(30), 3, torch.device("cpu"))


@pytest.fixture
def model() -> ImageClassifier:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh())
    return ImageClassifier(features, {"head": nn.Linear(5, 3)}).eval()


def test_the_centre_is_the_model_which_stays_bitwise_as_it_is(model, data, grid):
    first, second = top_eigenpairs(model, data, CONFIG).eigenvectors[:2]
    before = copy.deepcopy(model.state_dict())
    grid(0.7, 5)
    surface = loss_surface(model, data, CONFIG, first, second)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    own = evaluate(model, data, CONFIG)
    assert surface.offsets.tolist() == pytest.approx([-0.7, -0.35, 0, 0.35, 0.7])
    assert surface.loss[2, 2] == own.loss
    assert surface.accuracy[2, 2] == own.accuracy
    assert len(np.unique(surface.loss)) == 25


def normalised_by_batch() -> ImageClassifier:
    """As ``norm="batch-local"`` does it: a sample's logits depend on the batch that it is in."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    features = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), norm, nn.Tanh())
    return ImageClassifier(features, {"head": nn.Linear(5, 3)}).eval()


def test_the_centre_is_the_model_as_the_run_evaluates_it(data, grid):
    grid(0.5, 3)
    model, config = normalised_by_batch(), RunConfig(norm="batch-local", batch_size=10)
    first, second = top_eigenpairs(model, data, config).eigenvectors[:2]
    own = evaluate(model, data, config)
    assert own.loss != pytest.approx(evaluate(model, data, CONFIG).loss, rel=1e-3)
    assert loss_surface(model, data, config, first, second).loss[1, 1] == own.loss


@pytest.mark.parametrize("norm", ["batch", "batch-local"])
def test_curvature_along_the_eigenvectors_is_their_eigenvalue(model, data, grid, norm):
    config = RunConfig(norm=norm, batch_size=10)
    if norm == "batch-local":
        model = normalised_by_batch()
    spectrum = top_eigenpairs(model, data, config)
    step = 0.01
    grid(step, 3)
    loss = loss_surface(model, data, config, *spectrum.eigenvectors[:2]).loss
    along_first = (loss[1, 0] - 2 * loss[1, 1] + loss[1, 2]) / step**2
    along_second = (loss[0, 1] - 2 * loss[1, 1] + loss[2, 1]) / step**2
    assert [along_first, along_second] == pytest.approx(spectrum.eigenvalues[:2], rel=0.01)
    assert spectrum.eigenvalues[0] > 1.1 * spectrum.eigenvalues[1]


def test_a_corner_is_the_model_moved_by_hand(model, data, grid):
    first = {"heads.head.bias": torch.tensor([1.0, 0.0, 0.0])}
    second = {"heads.head.bias": torch.tensor([0.0, 2.0, 0.0])}
    grid(3.0, 2)
    surface = loss_surface(model, data, CONFIG, first, second)
    with torch.no_grad():
        model.heads["head"].bias += torch.tensor([3.0, -6.0, 0.0])  # a = 3, b = -3
    found = evaluate(model, data, CONFIG)
    assert surface.loss[0, 1] == pytest.approx(found.loss)
    assert surface.accuracy[0, 1] == pytest.approx(found.accuracy)
    assert surface.loss[1, 0] != pytest.approx(found.loss)


def test_a_loss_that_overflows(model, data, grid):
    first, second = top_eigenpairs(model, data, CONFIG).eigenvectors[:2]
    before = copy.deepcopy(model.state_dict())
    grid(1e39, 3)
    with pytest.raises(TrainingError, match=r"not finite within a radius of 1e\+39"):
        loss_surface(model, data, CONFIG, first, second)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_surfaces_are_drawn_side_by_side_on_one_scale(tmp_path, monkeypatch):
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda f, *a, **k: (drawn.append(f), save(f, *a, **k)))
    offsets = np.linspace(-1, 1, 5)
    bowl = np.add.outer(offsets**2, offsets**2)
    surfaces = {
        "Sharp": Surface(offsets, 1 + 100 * bowl, 0 * bowl),
        "Flat": Surface(offsets, bowl, 0 * bowl),  # touches zero, which has no logarithm
    }
    path = tmp_path / "surfaces.png"
    plot_surfaces(surfaces, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    panels = drawn[0].axes[:2]
    assert [axes.get_title() for axes in panels] == ["Sharp", "Flat"]
    meshes = [next(c for c in axes.collections if isinstance(c, QuadMesh)) for axes in panels]
    assert {mesh.get_clim() for mesh in meshes} == {(1e-4, 201.0)}
    assert meshes[0].get_array().max() == 201.0
    assert meshes[1].get_array().max() == 2.0
