"""FedDecorr's regulariser and FedGELA's frame (BASELINES.md 8 and 5)."""

import pytest
import torch

from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.feddecorr import decorrelation
from strategies.fedgela import METHOD, class_scales, simplex_frame


def features(samples=32, size=5):
    return torch.randn(samples, size, generator=torch.Generator().manual_seed(3))


def test_decorrelation_is_the_closed_form_of_the_correlation_matrix():
    """R = ((B-1)^2 / B) * mean over i != j of K_ij^2."""
    h = features()
    correlation = torch.corrcoef(h.T)
    off = correlation[~torch.eye(5, dtype=torch.bool)].square().mean()
    assert float(decorrelation(h)) == pytest.approx(float(31**2 / 32 * off), rel=1e-5)


def test_decorrelation_ignores_affine_maps_and_order():
    h = features()
    scaled = h * torch.tensor([0.1, 1.0, 5.0, 20.0, 3.0]) + torch.arange(5.0)
    shuffled = h[torch.randperm(32, generator=torch.Generator().manual_seed(1))]
    assert float(decorrelation(scaled)) == pytest.approx(float(decorrelation(h)), abs=1e-4)
    assert float(decorrelation(shuffled)) == pytest.approx(float(decorrelation(h)), abs=1e-4)


def test_decorrelation_of_duplicated_columns_two_samples_and_one():
    column = features(16, 1)
    assert float(decorrelation(column.repeat(1, 2))) == pytest.approx(15**2 / 16, rel=1e-4)
    assert float(decorrelation(features(2, 4))) == pytest.approx(0.5, rel=1e-3)
    assert float(decorrelation(features(1, 4))) == 0.0


def test_decorrelation_gradient_is_finite_with_a_dead_feature():
    h = torch.cat([features(), torch.zeros(32, 1)], dim=1).requires_grad_(True)
    (gradient,) = torch.autograd.grad(decorrelation(h), h)
    assert torch.isfinite(gradient).all()
    assert gradient[:, :5].abs().sum() > 0


@pytest.mark.parametrize(("size", "classes"), [(84, 9), (10, 10), (512, 2)])
def test_frame_is_a_simplex(size, classes):
    frame = simplex_frame(size, classes).double()
    expected = classes / (classes - 1) * (torch.eye(classes).double() - 1 / classes)
    assert torch.allclose(frame.T @ frame, expected, atol=1e-6)


def test_frame_needs_as_many_features_as_classes():
    with pytest.raises(ConfigError, match="5 for 6 classes"):
        simplex_frame(5, 6)


def test_frame_is_the_same_everywhere_not_sent_and_not_trained():
    spec = ModelSpec("lenet", "batch", (1, 28, 28), 10)
    one, other = (build_classifier(spec, 4, METHOD.heads) for _ in range(2))
    assert torch.equal(one.heads["frame"].frame, other.heads["frame"].frame)
    assert not any("frame.frame" in name for name in one.state_dict())
    assert not any("frame.frame" in name for name in one.parameter_names())
    different = build_classifier(spec, 5, METHOD.heads)
    assert not torch.equal(one.heads["frame"].frame, different.heads["frame"].frame)


def test_class_scales_sum_to_the_number_of_classes_and_are_one_when_balanced():
    counts = torch.tensor([30, 0, 10, 0])
    assert class_scales(counts).tolist() == [3.0, 0.0, 1.0, 0.0]
    assert float(class_scales(counts).sum()) == 4.0
    assert torch.allclose(class_scales(counts * 7), class_scales(counts))
    assert class_scales(torch.tensor([6, 6, 6])).tolist() == [1.0, 1.0, 1.0]
