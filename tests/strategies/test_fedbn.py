"""FedBN: normalisation layers stay with their client, and all else is FedAvg."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import identical, messages_of, serve
from torch import nn
from training_cases import CLASSES, linear, local_data, task

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.client_context import ContextState, configured_data
from fedadb_app.data.clients import client_data
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import Trainer
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from fedadb_app.models.norm import normalisation_tensors
from fedadb_app.settings import Settings
from fedadb_app.wire_arrays import to_state_dict
from strategies.fedbn import FedBN, FedBNParams, FedBNTrainer, take_up
from strategies.server import RoundInputs

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
LAYER = {f"features.1.{tensor}" for tensor in NORM}


def normalised() -> ImageClassifier:
    torch.manual_seed(4)
    features = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 5), nn.ReLU())
    return ImageClassifier(features, {"head": nn.Linear(5, CLASSES)})


# --- which tensors --------------------------------------------------------------------------


def test_every_normalisation_layer_whatever_it_is():
    assert set(normalisation_tensors(normalised())) == LAYER
    assert normalisation_tensors(linear()) == ()
    for norm, tensors in (("batch", 5), ("batch-local", 2), ("group", 2)):
        names = normalisation_tensors(
            build_classifier(ModelSpec("resnet8", norm, (1, 28, 28), 3), 0)
        )
        assert len(names) == len(set(names)) == 9 * tensors  # docs/models.md: nine layers
    others = nn.ModuleDict({"a": nn.LayerNorm(3), "b": nn.Linear(3, 3), "c": nn.GroupNorm(1, 3)})
    assert set(normalisation_tensors(others)) == {"a.weight", "a.bias", "c.weight", "c.bias"}


# --- client ---------------------------------------------------------------------------------


def test_two_rounds_of_a_client_by_plain_training():
    """Each begins with the layer that the last one ended with, and sends the received one."""
    work = task(local_data(12), batch_size=4, local_epochs=2)
    kept = {}
    for t in (1, 2):
        model, plain = normalised(), normalised()
        received = model.state_copy()
        take_up(plain, kept)
        Trainer(plain, replace(work, server_round=t), Settings()).train()
        FedBNTrainer(model, replace(work, server_round=t), FedBNParams()).train()
        sent, expected = model.state_copy(), plain.state_copy()
        assert identical({n: sent[n] for n in LAYER}, {n: received[n] for n in LAYER})
        assert identical({n: sent[n] for n in sent.keys() - LAYER},
                         {n: expected[n] for n in sent.keys() - LAYER})  # fmt: skip
        kept = {name: expected[name] for name in LAYER}
        assert identical(work.state, kept)
        assert int(kept["features.1.num_batches_tracked"]) == 6 * t
    assert not torch.equal(kept["features.1.weight"], received["features.1.weight"])


# --- server ---------------------------------------------------------------------------------


def test_the_server_keeps_the_initial_layers_and_averages_the_rest():
    initial = normalised().state_copy()
    inputs = RoundInputs(1, 2, 1.0, 2, 2.0, initial, ())
    moved = [{n: t + k for n, t in initial.items()} for k in (1, 4)]
    updates = [ClientUpdate(k, moved[k], n, {}) for k, n in enumerate((2, 1))]
    model = FedBN(FedBNParams(), sorted(LAYER)).update(inputs, updates).model
    for name, tensor in initial.items():
        if name in LAYER:
            assert torch.equal(model[name], tensor)
        else:
            torch.testing.assert_close(model[name].float(), tensor + 2)  # (2 * 1 + 1 * 4) / 3


# --- a federation ---------------------------------------------------------------------------


def test_clients_evaluate_their_own_model(hospitals):
    """By hand: the mean's tensors, and the layers that each node has kept in its memory."""
    built = hospitals(strategy="fedbn", model="resnet8", learning_rate=0.1, num_server_rounds=1)
    initial = {n: t.clone() for n, t in built.strategy.global_model.items()}
    built.run()
    names = set(normalisation_tensors(built.strategy.run.model))
    config, theta = built.strategy.run.config, built.strategy.global_model
    assert identical({n: theta[n] for n in names}, {n: initial[n] for n in names})
    sent = [m for m in built.grid.received if m.metadata.message_type == "train"]
    for reply in sent:
        arrays = to_state_dict(reply.content["arrays"])
        assert identical({n: arrays[n] for n in names}, {n: initial[n] for n in names})
    last = {
        m.metadata.src_node_id: m.content["metrics"]
        for m in built.grid.received
        if m.metadata.message_type == "evaluate"
    }
    losses = []
    for node, metrics in last.items():
        context = built.grid.context(node)
        state = ContextState(context).read(9)[1]
        assert set(state) == names
        model = build_classifier(ModelSpec.of(config, built.strategy.run.schema), 0)
        model.load_state_dict({**theta, **state})
        data = client_data(config, configured_data(context, config), torch.device("cpu"))
        found = evaluate(model, data.held_out, config)
        assert metrics["loss"] == found.loss
        model.load_state_dict(theta)
        losses.append(evaluate(model, data.held_out, config).loss != found.loss)
    assert losses == [True] * 3


@pytest.mark.slow
def test_a_resumed_run_evaluates_with_the_layers_that_were_kept_before(tmp_path, quadrants):
    """After the crash two clients of four train in a round, and all four evaluate."""
    settings = {
        **{"strategy": "fedbn", "dataset": quadrants, "partition": "iid", "model": "resnet8"},
        **{"device": "cpu", "num-server-rounds": 4, "local-epochs": 1, "batch-size": 128},
        **{"fraction-train": 0.5, "evaluate": "clients", "checkpoint-every": 2},
        **{"output-dir": str(tmp_path), "client-state-dir": str(tmp_path / "states")},
    }
    serve({**settings, "run-name": "whole"}, clients=4, run_id=1)
    serve({**settings, "run-name": "a"}, clients=4, run_id=2, crash_in=3)
    serve({**settings, "run-name": "b", "resume-from": str(tmp_path / "a")}, clients=4, run_id=3)
    tables = [(tmp_path / name / "sites.csv").read_bytes() for name in ("whole", "b")]
    assert tables[0] == tables[1]
    assert np.ptp([float(row.split(b",")[-1]) for row in tables[0].splitlines()[1:]]) > 0


def test_what_the_server_evaluates_is_said(federation, caplog):
    with caplog.at_level(logging.WARNING):
        federation(strategy="fedbn", model="resnet8", **{"run-name": "1"})
        federation(strategy="fedbn", model="resnet8", evaluate="clients", **{"run-name": "2"})
        federation(strategy="fedbn", model="lenet", **{"run-name": "3"})
    first, last = (s for s in messages_of(caplog.records, "WARNING") if "fedbn" in s)
    assert "the server evaluates what a newcomer begins with" in first
    assert "is FedAvg here: the model has no normalisation layer" in last
