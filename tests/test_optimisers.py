"""AdamW, clipped gradients, warm-up: by hand, and which methods refuse what."""

import pytest
import torch
from contract.settings import QUICK
from helpers import make_federation
from torch import nn
from training_cases import linear, local_data, state_of, task

from fedadb_app.config import RunConfig, Settings
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import Trainer
from strategies.registry import METHODS, read_run_config

ONLY_SGD = {"feddyn", "fedasam", "fedsol", "fedacg", "fedexp", "scaffold", "fedgmt", "fedgloss"}


def gradients(model, data) -> dict[str, torch.Tensor]:
    """Of the mean cross-entropy over all samples, which are one batch."""
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(data.load(torch.arange(len(data)))), data.labels)
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_two_steps_of_adamw_by_hand():
    """m, v start at 0 and are divided by 1 - beta^t; the weight decay is apart from both."""
    model, data = linear(), local_data(6)
    rate, decay = 0.1, 0.2
    expected = linear()
    expected.load_state_dict(model.state_dict())
    first = {n: torch.zeros_like(p) for n, p in expected.named_parameters()}
    second = {n: torch.zeros_like(p) for n, p in expected.named_parameters()}
    for step in (1, 2):
        found = gradients(expected, data)
        with torch.no_grad():
            for name, p in expected.named_parameters():
                first[name] = 0.9 * first[name] + 0.1 * found[name]
                second[name] = 0.999 * second[name] + 0.001 * found[name] ** 2
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                p.copy_(p * (1 - rate * decay) - rate * mean / (square.sqrt() + 1e-8))
    values = {"optimizer": "adamw", "weight_decay": decay, "local_epochs": 2, "momentum": 0.5}
    Trainer(model, task(data, learning_rate=rate, **values), Settings()).train()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected.state_dict()[name], atol=1e-5, rtol=1e-4)


def test_adamw_begins_anew_in_each_round():
    """A first step is of the size of the learning rate in each coordinate, in every round."""
    model, data = linear(), local_data(6)
    for server_round in (1, 2):
        before = state_of(model)
        values = {"optimizer": "adamw", "weight_decay": 0.0, "local_epochs": 1}
        Trainer(model, task(data, server_round, 0.01, **values), Settings()).train()
        for name, tensor in model.state_dict().items():
            moved = (tensor - before[name]).abs()
            torch.testing.assert_close(moved, torch.full_like(moved, 0.01), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("limit", "clipped"), [(0.0, False), (1e-3, True), (1e3, False)])
def test_a_gradient_is_scaled_down_to_its_largest_norm(limit, clipped):
    model, data = linear(), local_data(6)
    before, found = state_of(model), gradients(model, data)
    norm = torch.cat([g.flatten() for g in found.values()]).norm()
    values = {"momentum": 0.0, "weight_decay": 0.0, "local_epochs": 1, "max_grad_norm": limit}
    Trainer(model, task(data, learning_rate=0.5, **values), Settings()).train()
    factor = limit / norm if clipped else 1.0
    for name, gradient in found.items():
        moved = before[name] - model.state_dict()[name]
        torch.testing.assert_close(moved, 0.5 * factor * gradient, atol=1e-6, rtol=1e-3)


def test_the_learning_rate_grows_for_so_many_rounds():
    config = RunConfig(learning_rate=1.0, learning_rate_decay=0.5, warmup_rounds=3)
    rates = [config.learning_rate_at(t) for t in range(1, 6)]
    assert rates == [0.25, 0.5 * 0.5, 0.25 * 0.75, 0.125, 0.0625]
    assert RunConfig(learning_rate=0.3).learning_rate_at(1) == 0.3


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_with_adamw_or_says_why_not(name, tmp_path):
    values = {**QUICK, "strategy": name, "optimizer": "adamw", "model": "lenet"}
    if name in ONLY_SGD:
        with pytest.raises(ConfigError) as refusal:
            read_run_config(values)
        assert f'optimizer="adamw" is not possible with strategy="{name}"' in str(refusal.value)
        assert str(refusal.value).endswith('use optimizer="sgd"')
        return
    values |= {"output-dir": str(tmp_path), "num-server-rounds": 1, "max-grad-norm": 1.0}
    values |= {"warmup-rounds": 1, "learning-rate": 0.002, "batch-size": 256}
    federation = make_federation(values, clients=2)
    before = {n: t.clone() for n, t in federation.strategy.global_model.items()}
    federation.run()
    (row,) = federation.rows
    assert (row["clients"], row["failures"], row["learning_rate"]) == ("2", "0", "0.001")
    assert all(torch.isfinite(t).all() for t in federation.strategy.global_model.values())
    assert any(not torch.equal(t, before[n]) for n, t in federation.strategy.global_model.items())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"optimizer": "adam"}, 'optimizer="adam" is not allowed: expected one of "sgd", "adamw"'),
        ({"warmup-rounds": -1}, "warmup-rounds=-1 is not allowed"),
        ({"max-grad-norm": -0.5}, "max-grad-norm=-0.5 is not allowed"),
    ],
)
def test_wrong_values_are_refused(values, said):
    with pytest.raises(ConfigError, match=said):
        read_run_config(values)
