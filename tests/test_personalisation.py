"""Fine-tuning: plain training on, with the run's first learning rate, for the heads asked for."""

from dataclasses import replace

import pytest
import torch
from run_configurations import refusal
from torch import nn
from torch.nn import functional as F
from training_cases import CLASSES, identical, linear, local_data, state_of, task

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import ClientData
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.personalisation import FineTuning, personalised
from fedadb_app.settings import Settings

HELD = local_data(9)
DATA = ClientData(local_data(10), HELD)


def config(**values) -> RunConfig:
    given = {"personalise_epochs": 3, "evaluate": "clients", "num_server_rounds": 4}
    return RunConfig(**{**given, "learning_rate": 0.1, "batch_size": 4, **values})


def two_heads() -> ImageClassifier:
    torch.manual_seed(1)
    heads = {"agb": nn.Linear(4, CLASSES), "lcb": nn.Linear(4, CLASSES)}
    return ImageClassifier(nn.Flatten(), heads)


def test_it_is_a_round_more_of_plain_training_without_decay():
    tuned, plain = linear(), linear()
    FineTuning(tuned, config(learning_rate_decay=0.5, local_epochs=1), 7, DATA, ["head"]).train()
    work = task(DATA.train, 5, 0.1, client=7, batch_size=4, local_epochs=3)
    Trainer(plain, work, Settings()).train()
    assert identical(tuned.state_dict(), plain.state_dict())
    assert not torch.equal(tuned.heads["head"].weight, linear().heads["head"].weight)


def test_a_step_is_on_the_sum_of_the_heads_losses():
    """By hand: the extractor has no weights, so each head moves by the gradient of its own."""
    values = {"momentum": 0.0, "weight_decay": 0.0, "batch_size": 10, "personalise_epochs": 1}
    model, before = two_heads(), state_of(two_heads())
    FineTuning(model, config(**values), 0, DATA, ["agb", "lcb"]).train()
    images = DATA.train.load(torch.arange(10)).flatten(1)
    for head in ("agb", "lcb"):
        start = two_heads().heads[head]
        F.cross_entropy(start(images), DATA.train.labels).backward()
        expected = before[f"heads.{head}.weight"] - 0.1 * start.weight.grad
        torch.testing.assert_close(model.heads[head].weight.detach(), expected)


def test_a_head_that_is_not_asked_for_stays():
    model, before = two_heads(), state_of(two_heads())
    FineTuning(model, config(), 0, DATA, ["agb"]).train()
    assert torch.equal(model.heads["lcb"].weight, before["heads.lcb.weight"])
    assert not torch.equal(model.heads["agb"].weight, before["heads.agb.weight"])


def test_what_each_head_finds_afterwards():
    model, twin = two_heads(), two_heads()
    after = personalised(model, config(), 0, DATA, ["agb", "lcb"])
    FineTuning(twin, config(), 0, DATA, ["agb", "lcb"]).train()
    found = []
    for head in ("agb", "lcb"):
        twin.evaluated_head = head
        found.append(int(evaluate(twin, HELD, config()).correct.sum()))
    assert after == found


def test_a_training_that_diverges_gives_nothing():
    assert personalised(linear(), config(learning_rate=1e38), 0, DATA, ["head"]) is None


@pytest.mark.parametrize("samples", [1, 5])
def test_a_sample_alone_is_not_normalised_by_itself(samples):
    features = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))
    model = ImageClassifier(features, {"head": nn.Linear(4, CLASSES)})
    before = state_of(model)
    data = replace(DATA, train=local_data(samples))
    assert personalised(model, config(), 0, data, ["head"]) is not None
    assert identical(model.state_dict(), before) == (samples == 1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, '"clients" or "both"'),
        ({"evaluate": "none"}, 'but evaluate="none"'),
        ({"evaluate": "clients", "privacy": "central"}, "without noise"),
        ({"evaluate": "server", "privacy": "local"}, "without noise"),
        (
            {"evaluate": "both", "patience": 3, "validation": "0.1", "select-by": "val-auc"},
            "with patience=3 nobody knows which round that is",
        ),
        ({"strategy": "local", "evaluate": "clients"}, "no model of all"),
    ],
)
def test_what_it_is_not_possible_with(values, words):
    text = refusal({"personalise-epochs": 2, **values})
    assert words in text
    assert values.get("strategy") == "local" or text.startswith("personalise-epochs=2")
