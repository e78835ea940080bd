"""Differential privacy in whole federations: what is released, and of what."""

import itertools
import math

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, node_id, server_context, simulated_nodes
from faults import edited, fails, first
from flwr.app import ConfigRecord
from helpers import identical
from privacy_cases import (
    CENTRAL,
    PLAIN,
    SINGLE,
    both_modes,
    copied,
    every_method,
    is_query,
    mean_methods,
    state,
)
from safetensors.torch import load_file

import server_app
import strategies.central_privacy
import strategies.evaluation
import strategies.fedadb
import strategies.local_privacy
from fedadb_app import messages
from fedadb_app.anchors import generate_anchors
from fedadb_app.data.preparation import CENTRED
from fedadb_app.errors import ConfigError
from fedadb_app.privacy import gaussian_epsilon, noised_mean
from fedadb_app.randomness import secret_generator, torch_generator
from fedadb_app.wire_arrays import to_arrays, to_state_dict

# --- every method ---------------------------------------------------------------------------


@every_method
@both_modes
def test_every_method_runs_or_is_refused(federation, name, privacy):
    values = {**PLAIN, **CENTRAL, "privacy": privacy, "strategy": name}
    if privacy == "central" and name in SINGLE:
        with pytest.raises(ConfigError, match=f'privacy="central" .* strategy="{name}"'):
            federation(**values)
        return
    built = federation(**values)
    built.run()
    assert all(bool(torch.isfinite(t).all()) for t in built.strategy.global_model.values())
    reach = {"central": 1, "local": 2}[privacy]
    assert [row["epsilon"] for row in built.rows] == [
        f"{gaussian_epsilon(reach * math.sqrt(t) / 0.01, 1e-5):.6g}" for t in (1, 2)
    ]
    types = {n: tensor.dtype for n, tensor in built.strategy.run.model.state_dict().items()}
    for message in built.grid.trained():
        assert {n: tensor.dtype for n, tensor in state(message).items()} == types


@mean_methods
def test_each_release_is_the_noised_mean_of_what_was_sent_and_came_back(
    federation, repeatable, monkeypatch, name
):
    """By brute force, from the messages; two of five fail and count as a movement of zero."""
    repeatable()
    values = {"privacy": "central", "clipping-norm": 0.02, "noise-multiplier": 2.0}
    built = federation(5, **PLAIN, **values, strategy=name, **{"learning-rate": 1.0})
    released: list[dict[str, torch.Tensor]] = []
    aggregate = built.strategy.aggregate_train

    def recorded(server_round, messages_):
        arrays, metrics = aggregate(server_round, messages_)
        released.append(to_state_dict(arrays))
        assert identical(built.strategy.global_model, released[-1])
        return arrays, metrics

    monkeypatch.setattr(built.strategy, "aggregate_train", recorded)
    built.fault(1, edited(first(lambda a: np.full_like(a, np.nan))))
    built.fault(4, fails())
    built.run()
    assert [(row["clients"], row["failures"]) for row in built.rows] == [("3", "2")] * 2

    replies = [m for m in built.grid.received if not is_query(m)]
    asked = [state(m) for m in built.grid.trained()]
    assert len(replies) == len(asked) == 10
    for t in (0, 1):
        start = asked[5 * t]  # FedACG: not the last release, but the look-ahead
        total = {n: np.zeros(tuple(tensor.shape)) for n, tensor in start.items()}
        for reply in replies[5 * t : 5 * t + 5]:
            if reply.has_error() or reply.metadata.src_node_id == node_id(1):
                continue
            moved = {n: a.double().numpy() - start[n].numpy() for n, a in state(reply).items()}
            length = np.linalg.norm(np.concatenate([m.ravel() for m in moved.values()]))
            assert length > 0.02, "the clipping was meant to bite"
            for n in total:
                total[n] += moved[n] * 0.02 / length
        noise = np.random.default_rng([0, t])
        for n, tensor in released[t].items():
            drawn = noise.normal(0, 2 * 0.02, total[n].shape)
            expected = start[n].numpy() + (total[n] + drawn) / 5
            np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)


@mean_methods
def test_the_update_of_a_method_sees_the_noised_mean_alone(federation, monkeypatch, name):
    """So whatever a method does there, now or later, costs nothing more."""
    built = federation(**PLAIN, **CENTRAL, strategy=name)
    made, seen = [], []
    monkeypatch.setattr(
        strategies.central_privacy,
        "noised_mean",
        lambda *a: made.append(noised_mean(*a)) or made[-1],
    )
    update = built.strategy.half.update
    monkeypatch.setattr(
        built.strategy.half, "update", lambda t, updates: seen.append(updates) or update(t, updates)
    )
    built.run()
    assert [len(updates) for updates in seen] == [1, 1]
    for (only,), mean in zip(seen, made, strict=True):
        assert identical(only.arrays, mean)
        assert only.metrics == {}


# --- the noise is there, and nothing goes around it -----------------------------------------


@mean_methods
def test_replies_reach_messages_and_files_through_the_release_alone(federation, monkeypatch, name):
    """Two worlds with other updates and other losses, but the same releases: nothing differs."""
    monkeypatch.setattr(
        strategies.central_privacy,
        "noised_mean",
        lambda reference, *_: {n: t + 0.01 for n, t in reference.items()},
    )
    worlds = []
    for scale in (1.0, 1.5):
        built = federation(**PLAIN, **CENTRAL, strategy=name, **{"run-name": str(scale)})
        change = edited(
            lambda arrays, s=scale: {n: a * np.float32(s) for n, a in arrays.items()},
            lambda metrics, s=scale: {**metrics, "train-loss": s},
        )
        for client in range(3):
            built.fault(client, change)
        built.run()
        worlds.append(built)
    one, other = (
        {
            "rounds": [{k: v for k, v in row.items() if "seconds" not in k} for row in built.rows],
            "sent": [dict(message.content) for message in built.grid.trained()],
            **{
                path.name: path.read_text()
                for path in built.folder.path.iterdir()
                if path.name not in ("rounds.csv", "summary.json")
            },
        }
        for built in worlds
    )
    assert one == other
    assert one["sent"][0] != one["sent"][-1]


def test_nothing_is_computed_from_or_written_of_the_model_without_noise(values, monkeypatch):
    """Evaluation, anchors, messages and files: each model that is touched is a noised one."""
    values |= {**CENTRAL, "strategy": "fedadb", "num-server-rounds": 3}
    plain, noised, used = [], [], []

    def spied(reference, models, drawn, clipping_norm, noise_multiplier, rng):
        rest = (models, drawn, clipping_norm)
        plain.append(noised_mean(reference, *rest, 0.0, rng))
        noised.append(noised_mean(reference, *rest, noise_multiplier, rng))
        return noised[-1]

    monkeypatch.setattr(strategies.central_privacy, "noised_mean", spied)
    pack = to_arrays
    monkeypatch.setattr(
        messages, "to_arrays", lambda model: used.append(copied(model)) or pack(model)
    )
    make_anchors = strategies.fedadb.anchors_of_round
    monkeypatch.setattr(
        strategies.fedadb,
        "anchors_of_round",
        lambda model, *a: used.append(copied(model.state_dict())) or make_anchors(model, *a),
    )
    evaluate = strategies.evaluation.evaluate
    monkeypatch.setattr(
        strategies.evaluation,
        "evaluate",
        lambda model, *a: used.append(copied(model.state_dict())) or evaluate(model, *a),
    )
    grid = FakeGrid(values, simulated_nodes(3))
    # What the clients pack is theirs; in this process it would be seen, too.
    answer = grid._answer

    def unseen(message):
        count = len(used)
        reply = answer(message)
        del used[count:]
        return reply

    monkeypatch.setattr(grid, "_answer", unseen)
    server_app.app(grid, server_context(values))

    folder = grid.run_config["output-dir"] + "/run/"
    used += [state(m) for m in grid.trained()]
    used.append(load_file(folder + "model.safetensors"))
    assert len(noised) == 3
    allowed = [state(grid.trained()[0]), *map(single, noised)]
    forbidden = [single(model) for model in plain]
    for model in used:
        assert any(identical(model, other) for other in allowed)
        assert not any(identical(model, other) for other in forbidden)
    assert identical(load_file(folder + "model.safetensors"), allowed[-1])
    assert len(used) > 3 * 4


def single(model: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in model.items()}


def test_anchors_are_a_function_of_the_released_model_alone(federation):
    """Anyone with the model of the same message, the seed and the code makes the same anchors."""
    built = federation(**CENTRAL, strategy="fedadb")
    built.run()
    run, params = built.strategy.run, built.strategy.run.params
    sent = {m.content["config"]["round"]: m for m in built.grid.trained()}
    for t, message in sent.items():
        released, instruction = messages.read_train(message)
        run.model.load_state_dict(released)
        expected = generate_anchors(
            run.model,
            run.dataset.num_classes,
            run.dataset.image_shape,
            CENTRED.valid_range,
            params.anchor_settings(),
            torch_generator(run.config.seed, "anchors", t),
        )
        assert torch.equal(instruction.attachments["anchors"].tensors["images"], expected.images)
    assert not identical(state(sent[1]), state(sent[2]))


def test_a_round_that_breaks_off_before_the_noise_leaves_the_last_release(values, monkeypatch):
    values |= {**CENTRAL, "num-server-rounds": 2}
    calls = itertools.count()

    def interrupted() -> np.random.Generator:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return secret_generator()

    monkeypatch.setattr(strategies.central_privacy, "secret_generator", interrupted)
    grid = FakeGrid(values, simulated_nodes(3))
    with pytest.raises(KeyboardInterrupt):
        server_app.app(grid, server_context(values))
    written = load_file(values["output-dir"] + "/run/model.safetensors")
    assert identical(written, state(grid.trained()[-1]))


def test_noise_is_as_large_as_calibrated_over_repetitions(federation):
    """The same round 40 times: in each coordinate z C / m apart; half or double would fail."""
    built = federation(3, **{**CENTRAL, "noise-multiplier": 2.0})
    strategy, start = built.strategy, built.strategy.global_model
    arrays = to_arrays(start)
    replies = built.grid.send_and_receive(
        strategy.configure_train(1, arrays, ConfigRecord(), built.grid)
    )
    found = []
    for _ in range(40):
        strategy.global_model = start
        strategy.aggregate_train(1, replies)
        found.append(strategy.global_model["heads.head.weight"])
    deviation = torch.stack(found).double().std(dim=0)
    assert deviation.mean().item() == pytest.approx(2.0 * 0.5 / 3, rel=0.05)
