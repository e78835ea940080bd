"""What making anchors must leave alone, and values that are not finite."""

import math

import numpy as np
import pytest
import torch
from anchor_cases import GREY, RGB, generate, lenet, resnet

from fedadb_app.anchors import AnchorSettings
from fedadb_app.errors import TrainingError
from fedadb_app.models.classifier import ImageClassifier

# --- what must not change -------------------------------------------------------------------


def awkward(kind: str) -> tuple[ImageClassifier, tuple[int, int, int]]:
    """A model with every second parameter frozen and its modules in mixed modes."""
    model, shape = (lenet(), GREY) if kind == "lenet" else (resnet(kind), RGB)
    for i, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(i % 2 == 0)
    model.train()
    for i, module in enumerate(model.modules()):
        if i % 3 == 1:
            module.training = False
    return model, shape


def snapshot(model: ImageClassifier) -> tuple[object, ...]:
    return (
        {name: tensor.detach().numpy().tobytes() for name, tensor in model.state_dict().items()},
        [id(p) for p in model.parameters()],
        [p.requires_grad for p in model.parameters()],
        [p.grad for p in model.parameters()],
        [m.training for m in model.modules()],
    )


@pytest.mark.parametrize("kind", ["lenet", "batch", "batch-local", "group"])
def test_the_global_model_stays_as_it_was(kind):
    model, shape = awkward(kind)
    before = snapshot(model)
    generate(model, AnchorSettings(steps=2), shape)
    assert snapshot(model) == before
    assert before[3] == [None] * len(before[3])
    assert {True, False} == set(before[2]) == set(before[4])


def test_gradients_that_were_there_stay():
    model = lenet()
    model(torch.ones(1, *GREY)).sum().backward()
    before = [p.grad.clone() for p in model.parameters()]
    generate(model, AnchorSettings(steps=2))
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))


def test_flags_and_modes_return_after_a_failure():
    model, _ = awkward("lenet")
    flags, modes = snapshot(model)[2], snapshot(model)[4]
    with pytest.raises(RuntimeError):
        generate(model, AnchorSettings(steps=2), shape=(3, 16, 16))  # wrong number of channels
    assert snapshot(model)[2] == flags
    assert snapshot(model)[4] == modes


# --- values that are not finite -------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 2])
def test_a_diverged_model_is_an_error_that_names_the_key(steps):
    model = lenet()
    next(model.parameters()).data[0] = math.nan
    with pytest.raises(TrainingError, match=r"fedadb\.anchor-learning-rate \(now 0\.5\)"):
        generate(model, AnchorSettings(steps=steps, learning_rate=0.5))


def test_an_overflowing_step_is_an_error_that_names_the_key():
    model = lenet()
    model.heads["head"].weight.data.zero_()  # no gradient, and float32(1e300) * 0 is no number
    with pytest.raises(TrainingError, match=r"fedadb\.anchor-learning-rate"):
        generate(model, AnchorSettings(steps=1, learning_rate=1e300, l2=0.0))


@pytest.mark.parametrize("eta", [1e10, 1e38])
def test_a_huge_step_ends_on_the_border(eta):
    found = generate(lenet(), AnchorSettings(steps=1, learning_rate=eta, l2=1e-4))
    assert np.all(found.images.abs().numpy() == 1)
