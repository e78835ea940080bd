"""What every registered model promises."""

import pytest
import torch

from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import ModelSpec, build_classifier, model_facts
from fedadb_app.models.registry import MODELS, find_model
from strategies.registry import METHODS

SHAPES = [(1, 28, 28), (3, 64, 70)]
each = pytest.mark.parametrize("name", MODELS)


@each
def test_it_says_what_it_is_and_where_it_comes_from(name):
    assert MODELS[name].title
    assert MODELS[name].paper


@each
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", ["batch", "batch-local", "group"])
def test_features_of_every_allowed_size_or_a_refusal(name, shape, norm):
    _, model = find_model(name, shape)
    with torch.device("meta"):
        try:
            features = model.features(shape, norm)
        except ConfigError as error:
            refusal = str(error)
            assert "\n" not in refusal
            return
        output = features(torch.zeros(2, *shape))
    assert output.shape == (2, model_facts(ModelSpec(name, norm, shape, 5)).feature_size)


@each
def test_a_step_of_training(name):
    """A gradient for every parameter, finite logits, nothing drawn, and a seed is a model."""
    spec = ModelSpec(name, "group", (1, 64, 64), 5)
    model, twin = (build_classifier(spec, 3, METHODS["fedavg"].heads) for _ in range(2))
    images = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    logits = model(images)
    logits.square().sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    assert logits.shape == (2, 5)
    assert torch.isfinite(logits).all()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    assert torch.equal(twin(images), logits)


@each
def test_group_normalisation_leaves_samples_apart(name):
    """What privacy="central" needs, too: no running statistics."""
    facts = model_facts(ModelSpec(name, "group", (3, 64, 64), 5))
    assert (facts.batch_statistics, facts.buffers, facts.smallest_batch) == (False, (), 1)
