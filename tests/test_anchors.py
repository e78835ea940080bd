"""Class anchor generation against equations 3-5, written out one anchor at a time."""

import itertools
import math

import pytest
import torch
from anchor_cases import CLASSES, GREY, RGB, generate, lenet, resnet
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedadb_app.anchors import AnchorSettings
from fedadb_app.models.classifier import ImageClassifier

SMALL_STEPS = AnchorSettings(steps=12, learning_rate=0.2, l2=1e-3)


def start_of(model: ImageClassifier, settings: AnchorSettings, **kwargs) -> Tensor:
    """The projected noise x^(0): what is left when no step is taken."""
    start = AnchorSettings(settings.per_class, 0, settings.learning_rate, settings.l2, 1.0)
    return generate(model, start, **kwargs).images


def anchor_loss(model: ImageClassifier, image: Tensor, target: int, l2: float) -> Tensor:
    """Equation 3 for one anchor, with the softmax spelt out."""
    logits = model(image[None])[0]
    probability = logits[target].exp() / logits.exp().sum()
    return -probability.log() + l2 * (image * image).sum()


def descend(
    model: ImageClassifier, image: Tensor, target: int, settings: AnchorSettings
) -> tuple[Tensor, float]:
    """Equation 4 for one anchor on its own; returns it and its confidence."""
    for _ in range(settings.steps):
        image = image.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(anchor_loss(model, image, target, settings.l2), image)
        moved = image.detach() - settings.learning_rate * gradient
        image = torch.minimum(torch.maximum(moved, torch.tensor(-1.0)), torch.tensor(1.0))
    with torch.no_grad():
        return image, float(model(image[None])[0].softmax(0)[target])


def one_pixel() -> ImageClassifier:
    """Logits (x, -x) of a one-pixel image x: the probability of class 0 is sigmoid(2x)."""
    head = nn.Linear(1, 2, bias=False)
    head.weight.data = torch.tensor([[1.0], [-1.0]])
    return ImageClassifier(nn.Flatten(), {"head": head})


# --- equations 3-5 --------------------------------------------------------------------------


def test_two_steps_by_hand():
    # From x=0: the gradient of class 0 is -2(1 - sigmoid(2x)) + 2 lambda x, so with eta=1/4,
    # lambda=1/2 the first step goes to 1/4, the second by (1 - sigmoid(1/2))/2 - 1/16.
    one, two = (
        generate(one_pixel(), AnchorSettings(1, steps, 0.25, 0.5, 0.0), (1, 1, 1), classes=2)
        for steps in (1, 2)
    )
    sigmoid = 1 / (1 + math.exp(-0.5))
    x = 0.25 + (1 - sigmoid) / 2 - 1 / 16

    assert one.images.flatten().tolist() == pytest.approx([0.25, -0.25], abs=1e-7)
    assert one.confidences.tolist() == pytest.approx([0.6224593] * 2, abs=1e-6)
    assert two.images.flatten().tolist() == pytest.approx([x, -x], abs=1e-6)
    assert two.quality == pytest.approx(1 / (1 + math.exp(-2 * x)), abs=1e-6)


def test_a_step_beyond_the_box_ends_on_its_border():
    settings = AnchorSettings(steps=1, learning_rate=3.0, noise=0.0)
    found = generate(one_pixel(), settings, (1, 1, 1), classes=2)
    assert found.images.flatten().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("shape", [GREY, RGB, (1, 20, 14)])
@pytest.mark.parametrize("per_class", [1, 3])
def test_all_anchors_together_are_each_anchor_alone(shape, per_class):
    """The twin also fixes the step: it must not shrink with the number of anchors."""
    model = lenet(shape)
    settings = AnchorSettings(per_class, 12, 0.2, 1e-3)
    found = generate(model, settings, shape)
    start = start_of(model, settings, shape=shape)
    targets = [c for c in range(CLASSES) for _ in range(per_class)]

    assert len(found.images) == len(targets)
    for i, target in enumerate(targets):
        image, confidence = descend(model, start[i], target, settings)
        assert (image - start[i]).abs().max() > 1e-2  # the twin went somewhere
        torch.testing.assert_close(found.images[i], image, atol=1e-5, rtol=0)
        assert float(found.confidences[i]) == pytest.approx(confidence, abs=1e-5)


def test_group_normalisation_keeps_anchors_apart():
    model = resnet("group")
    settings = AnchorSettings(steps=3, learning_rate=0.2)
    found = generate(model, settings, RGB)
    start = start_of(model, settings, shape=RGB)
    image, confidence = descend(model, start[2], 2, settings)
    torch.testing.assert_close(found.images[2], image, atol=1e-5, rtol=0)
    assert float(found.confidences[2]) == pytest.approx(confidence, abs=1e-5)


def test_batch_statistics_are_those_of_all_anchors_of_the_round():
    model = resnet("batch-local")
    settings = AnchorSettings(steps=3, learning_rate=0.2)
    found = generate(model, settings, RGB)

    images = start_of(model, settings, shape=RGB)
    for _ in range(settings.steps):
        images = images.clone().requires_grad_()
        likelihood = model(images).log_softmax(1).diagonal().sum()
        loss = settings.l2 * images.square().sum() - likelihood
        (gradient,) = torch.autograd.grad(loss, images)
        images = (images.detach() - settings.learning_rate * gradient).clamp(-1, 1)
    with torch.no_grad():
        together = model(images).softmax(1).diagonal()
        alone = torch.stack([model(images[i : i + 1]).softmax(1)[0, i] for i in range(CLASSES)])

    torch.testing.assert_close(found.images, images, atol=1e-5, rtol=0)
    assert found.quality == pytest.approx(float(together.mean()), abs=1e-5)
    assert abs(float(alone.mean()) - found.quality) > 1e-3  # so the batch did matter


def test_running_statistics_are_used_and_not_those_of_the_anchors():
    model = resnet("batch").eval()
    settings = AnchorSettings(steps=2, learning_rate=0.2)
    found = generate(model.train(), settings, RGB)
    start = start_of(model, settings, shape=RGB)
    image, confidence = descend(model.eval(), start[1], 1, settings)
    torch.testing.assert_close(found.images[1], image, atol=1e-5, rtol=0)
    assert float(found.confidences[1]) == pytest.approx(confidence, abs=1e-5)


def test_quality_is_the_mean_confidence_recomputed():
    model = lenet()
    found = generate(model, AnchorSettings(2, 12, 0.2))
    with torch.no_grad():
        logits = model(found.images).double()
    probabilities = logits.exp() / logits.exp().sum(1, keepdim=True)
    mine = [float(probabilities[i, c]) for i, c in enumerate([0, 0, 1, 1, 2, 2, 3, 3])]

    assert found.confidences.tolist() == pytest.approx(mine, abs=1e-6)
    assert found.quality == pytest.approx(sum(mine) / 8, abs=1e-6)
    assert max(mine) - min(mine) > 1e-3  # otherwise a mean could be any of them


def test_small_steps_never_raise_the_loss():
    model, l2 = lenet(), 1e-3
    losses = []
    for steps in range(0, 25, 4):
        found = generate(model, AnchorSettings(steps=steps, learning_rate=0.02, l2=l2))
        with torch.no_grad():
            losses.append(
                torch.stack([anchor_loss(model, x, c, l2) for c, x in enumerate(found.images)])
            )
    for before, after in itertools.pairwise(losses):
        assert (after <= before + 1e-6).all()
    assert (losses[-1] < losses[0] - 1e-2).all()


def test_confidence_grows_from_the_noise_to_the_anchor():
    model = lenet()
    start = generate(model, AnchorSettings(steps=0))
    found = generate(model, AnchorSettings())
    assert (found.confidences > start.confidences + 0.3).all()
    assert start.quality < 0.3
    assert found.quality > 0.8
    assert found.confidences.max() <= 1


def test_the_l2_term_pulls_towards_zero():
    model = lenet()
    free = generate(model, AnchorSettings(steps=20, learning_rate=0.2, l2=0.0))
    held = generate(model, AnchorSettings(steps=20, learning_rate=0.2, l2=0.1))
    assert held.images.norm() < 0.8 * free.images.norm()


# --- labels, start, box ---------------------------------------------------------------------


def test_m_anchors_for_each_class():
    found = generate(lenet(), AnchorSettings(per_class=3, steps=1))
    assert torch.bincount(found.labels).tolist() == [3] * CLASSES
    assert found.labels.dtype == torch.int64
    assert found.images.shape == (3 * CLASSES, *GREY)
    assert found.confidences.shape == (3 * CLASSES,)
    assert found.images.dtype == found.confidences.dtype == torch.float32
    assert not found.images.requires_grad
    assert not found.confidences.requires_grad


def test_without_steps_the_anchors_are_projected_noise():
    settings = AnchorSettings(per_class=20, steps=0)
    n = 20 * CLASSES * 256
    wide = generate(lenet(), settings).images
    narrow = generate(lenet(), AnchorSettings(per_class=20, steps=0, noise=0.01)).images

    # sigma = 0.01 never reaches the border: mean 0 and standard deviation sigma, in 4 sigma
    assert abs(float(narrow.mean())) < 4 * 0.01 / math.sqrt(n)
    assert float(narrow.std()) == pytest.approx(0.01, rel=4 / math.sqrt(2 * n))
    # the same draw, scaled to sigma = 1 and cut at the border
    torch.testing.assert_close(wide, (100 * narrow).clamp(-1, 1), atol=1e-5, rtol=0)
    outside = 0.3173105  # P(|z| > 1)
    margin = 4 * math.sqrt(outside * (1 - outside) / n)
    assert float((wide.abs() == 1).double().mean()) == pytest.approx(outside, abs=margin)


def test_no_noise_starts_at_zero():
    found = generate(lenet(), AnchorSettings(steps=0, noise=0.0))
    assert not found.images.any()


@hypothesis_settings(max_examples=25)
@given(
    eta=st.floats(1e-3, 1e6),
    l2=st.floats(0, 10),
    noise=st.floats(0, 100),
    steps=st.integers(0, 3),
)
def test_every_anchor_is_inside_the_box(eta, l2, noise, steps):
    found = generate(lenet(classes=3), AnchorSettings(1, steps, eta, l2, noise), classes=3)
    assert (found.images.abs() <= 1).all()
    assert 0 <= found.quality <= 1


def test_same_generator_same_bytes():
    model = lenet()
    first = generate(model, SMALL_STEPS, seed=3)
    torch.manual_seed(99)  # the global generator is of no account,
    state = torch.get_rng_state()
    again = generate(model, SMALL_STEPS, seed=3)
    other = generate(model, SMALL_STEPS, seed=4)

    assert torch.equal(state, torch.get_rng_state())  # and is not drawn from
    assert first.images.numpy().tobytes() == again.images.numpy().tobytes()
    assert first.confidences.numpy().tobytes() == again.confidences.numpy().tobytes()
    assert first.quality == again.quality
    assert not torch.equal(first.images, other.images)
