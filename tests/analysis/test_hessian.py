"""Hessian eigenpairs against dense Hessians, closed forms and finite differences."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedadb_app.analysis import hessian
from fedadb_app.analysis.hessian import hessian_vector_product, top_eigenpairs, training_sample
from fedadb_app.analysis.runs import SavedRun
from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError, TrainingError
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier, single_head

CLASSES = 3
CONFIG = RunConfig()


def random_data(size: int = 40, shape: tuple[int, ...] = (1, 6, 6)) -> LocalData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (size, *shape), np.uint8)
    labels = rng.integers(0, CLASSES, size)
    return LocalData.from_arrays(images, labels, np.arange(size), CLASSES, torch.device("cpu"))


def small_net() -> ImageClassifier:
    """Convolution, running statistics, max-pooling, ReLU; the second head is not evaluated."""
    torch.manual_seed(0)
    features = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
    )
    features[1].running_mean.uniform_(-0.2, 0.2)
    features[1].running_var.uniform_(0.5, 2)
    heads = {"agb": nn.Linear(8, CLASSES), "lcb": nn.Linear(8, CLASSES)}
    return ImageClassifier(features, heads).eval()


def double_twin(model, data):
    """The mean loss in float64, as a function of the parameters by name."""
    twin = copy.deepcopy(model).double().eval()
    images = data.load(torch.arange(len(data))).double()
    return lambda values: F.cross_entropy(functional_call(twin, values, (images,)), data.labels)


def dense_hessian(model, data, names):
    """The whole matrix, by PyTorch, in float64."""
    loss = double_twin(model, data)
    start = [model.get_parameter(name).detach().double() for name in names]

    def of_flat(flat):
        parts = flat.split([p.numel() for p in start])
        shaped = (part.view_as(p) for part, p in zip(parts, start, strict=True))
        return loss(dict(zip(names, shaped, strict=True)))

    return torch.autograd.functional.hessian(of_flat, torch.cat([p.flatten() for p in start]))


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()]).double()


def direction(model, seed):
    """A random direction in the parameters that count, of length one."""
    generator = torch.Generator().manual_seed(seed)
    names = [n for n, _ in model.named_parameters() if not n.startswith("heads.lcb")]
    drawn = {n: torch.randn(model.get_parameter(n).shape, generator=generator) for n in names}
    length = flat(drawn).norm().float()
    return {n: part / length for n, part in drawn.items()}


def test_eigenpairs_are_those_of_the_dense_hessian():
    model, data = small_net(), random_data()
    spectrum = top_eigenpairs(model, data, CONFIG)
    names = list(spectrum.eigenvectors[0])
    assert set(names) == {n for n, _ in model.named_parameters() if "lcb" not in n}
    matrix = dense_hessian(model, data, names)
    expected = np.linalg.eigvalsh(matrix.numpy())[::-1][:5]
    assert spectrum.eigenvalues == pytest.approx(list(expected), rel=1e-4)
    assert spectrum.anisotropy == pytest.approx(expected[0] / expected[4], rel=1e-4)

    vectors = torch.stack([flat(v) for v in spectrum.eigenvectors])
    assert torch.allclose(vectors @ vectors.T, torch.eye(5).double(), atol=1e-5)
    residual = vectors @ matrix - torch.tensor(spectrum.eigenvalues)[:, None] * vectors
    assert residual.norm(dim=1).max() < 1e-3 * expected[0]


def linear_model() -> ImageClassifier:
    """Four pixels, two classes, weights zero: both classes have probability one half."""
    head = nn.Linear(4, 2, bias=False)
    nn.init.zeros_(head.weight)
    return ImageClassifier(nn.Flatten(), {"head": head})


def orthogonal_data() -> LocalData:
    """Ten images of -1 and 1, four different and orthogonal: 4, 3, 2 and 1 of each."""
    signs = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    pixels = (255 * (signs > 0)).astype(np.uint8).repeat([4, 3, 2, 1], axis=0)
    labels = np.array([0] * 7 + [1] * 3)
    images = pixels.reshape(10, 1, 2, 2)
    return LocalData.from_arrays(images, labels, np.arange(10), 2, torch.device("cpu"))


def test_a_spectrum_known_in_closed_form():
    """H = (diag(p) - p p^T) x E[x x^T]: its eigenvalues are 1/2 * 4 * the images' shares, and 0."""
    spectrum = top_eigenpairs(linear_model(), orthogonal_data(), CONFIG)
    assert spectrum.eigenvalues == pytest.approx([0.8, 0.6, 0.4, 0.2, 0], rel=1e-5, abs=1e-6)
    assert spectrum.accuracy == pytest.approx(70.0)
    # the first lies along the most frequent image, up for one class and down for the other
    first = spectrum.eigenvectors[0]["heads.head.weight"]
    assert torch.allclose(first.abs(), torch.full((2, 4), 8**-0.5), atol=1e-4)
    assert torch.allclose(first.sum(dim=0), torch.zeros(4), atol=1e-4)
    assert torch.allclose(first, first[:, :1].expand(2, 4), atol=1e-4)


def test_a_last_eigenvalue_of_zero_gives_an_infinite_ratio():
    pair = hessian.Spectrum([1.0, 0.0], [], 50.0)
    assert pair.anisotropy == math.inf


def test_products_are_differences_of_gradients():
    spec = ModelSpec("lenet", "batch", (3, 28, 28), CLASSES)
    model, data = build_classifier(spec, 0), random_data(12, (3, 28, 28))
    v = direction(model, 1)
    loss = double_twin(model, data)

    def gradient(distance):
        values = {
            n: (model.get_parameter(n).detach().double() + distance * part).requires_grad_()
            for n, part in v.items()
        }
        parts = torch.autograd.grad(loss(values), list(values.values()))
        return torch.cat([part.flatten() for part in parts])

    expected = (gradient(1e-6) - gradient(-1e-6)) / 2e-6
    found = flat(hessian_vector_product(model.eval(), data, CONFIG, v))
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_how_the_samples_are_batched_does_not_matter():
    model, data = small_net(), random_data(40)
    v = direction(model, 2)
    whole = flat(hessian_vector_product(model, data, CONFIG, v))
    model.evaluation_batch = 7
    parts = flat(hessian_vector_product(model, data, CONFIG, v))
    assert (parts - whole).norm() < 1e-5 * whole.norm()


def test_a_head_that_is_not_evaluated_does_not_matter():
    model, data = small_net(), random_data()
    before = top_eigenpairs(model, data, CONFIG)
    nn.init.constant_(model.heads["lcb"].weight, 100.0)
    assert top_eigenpairs(model, data, CONFIG).eigenvalues == before.eigenvalues


def test_the_model_is_evaluated_not_trained_and_stays_as_it_is():
    model, data = small_net(), random_data()
    before = copy.deepcopy(model.state_dict())
    expected = top_eigenpairs(model, data, CONFIG).eigenvalues
    assert top_eigenpairs(model.train(), data, CONFIG).eigenvalues == expected
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet18", marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_products_of_larger_models_are_symmetric(name, norm):
    data = random_data(4, (3, 28, 28))
    model = build_classifier(ModelSpec(name, norm, (3, 28, 28), CLASSES), 0).eval()
    u, v = direction(model, 3), direction(model, 4)
    left = flat(u) @ flat(hessian_vector_product(model, data, CONFIG, v))
    right = flat(v) @ flat(hessian_vector_product(model, data, CONFIG, u))
    assert left != 0
    assert float(left) == pytest.approx(float(right), rel=1e-2)


# --- the sample -----------------------------------------------------------------------------


def a_run(folder, **values) -> SavedRun:
    return SavedRun(folder, RunConfig(**values), single_head, None)


def test_the_sample_is_drawn_from_the_training_part_with_the_runs_seed(
    tmp_path, quadrants, monkeypatch
):
    monkeypatch.setattr(hessian, "SAMPLE_SIZE", 50)
    run = a_run(tmp_path, dataset=quadrants, seed=1)
    sample = training_sample(run)
    dataset = open_dataset(quadrants, "")
    assert len(set(sample.positions.tolist())) == 50
    assert torch.equal(sample.images, torch.from_numpy(dataset.train_images))
    assert sample.labels.tolist() == dataset.train_labels[sample.positions].tolist()
    assert torch.equal(training_sample(run).positions, sample.positions)
    other = training_sample(a_run(tmp_path, dataset=quadrants, seed=2))
    assert not torch.equal(other.positions, sample.positions)


def test_a_small_data_set_is_taken_whole(tmp_path, quadrants):
    sample = training_sample(a_run(tmp_path, dataset=quadrants))
    assert sorted(sample.positions.tolist()) == list(range(400))


# --- what can go wrong ----------------------------------------------------------------------


def test_training_data_that_lie_at_the_nodes(tmp_path):
    config = {"dataset": "nodes", "classes": "a,b", "image_shape": "1x28x28", "evaluate": "clients"}
    with pytest.raises(DataError, match="lie at the nodes"):
        training_sample(a_run(tmp_path, **config))


def test_a_model_that_has_diverged():
    model = linear_model()
    nn.init.constant_(model.heads["head"].weight, math.nan)
    with pytest.raises(TrainingError, match="no finite Hessian: the model has diverged"):
        top_eigenpairs(model, orthogonal_data(), CONFIG)


def test_an_iteration_that_does_not_converge(monkeypatch):
    monkeypatch.setattr(hessian, "eigsh", partial(eigsh, maxiter=1, ncv=6))
    with pytest.raises(TrainingError, match=r"eigenvalues cannot be found: .*[Nn]o convergence"):
        top_eigenpairs(small_net(), random_data(), CONFIG)
