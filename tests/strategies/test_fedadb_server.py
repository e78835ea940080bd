"""FedADB's server half: the anchors it sends, and of what it makes them."""

from collections.abc import Mapping

import pytest
import torch
from fedadb_cases import (
    CLASSES,
    FEW,
    SHAPE,
    TWO_CLASSES,
    begun,
    dual,
    local_data,
    server,
    task,
    told,
)
from helpers import read_csv
from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.anchors import generate_anchors
from fedadb_app.data.clients import whole_test_part
from fedadb_app.data.preparation import CENTRED
from fedadb_app.evaluation import evaluate
from fedadb_app.local_training import Attachment
from fedadb_app.randomness import torch_generator
from strategies.fedadb import METHOD, FedADB, FedADBParams
from strategies.registry import METHODS
from strategies.server import Broadcast

# --- the server half ------------------------------------------------------------------------


def sent_by(half: FedADB, t: int, model: Mapping[str, Tensor] | None = None) -> Attachment:
    broadcast = half.broadcast(told(dual().state_dict() if model is None else model, t))
    (attachment,) = broadcast.attachments.values()
    return attachment


def test_anchors_are_of_the_global_model_and_its_agb_head():
    model = dual()
    for parameter in model.parameters():  # what an evaluation left on the workbench
        parameter.data.fill_(0.5)
    broadcast = server(model, FEW).broadcast(told(dual().state_dict()))
    sent = broadcast.attachments["anchors"]
    model = dual()
    with torch.no_grad():
        agb = model.heads["agb"](model.features(sent.tensors["images"])).softmax(1)
    confidences = agb[torch.arange(8), torch.arange(CLASSES).repeat_interleave(2)]
    assert sent.tensors["labels"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    torch.testing.assert_close(sent.tensors["confidences"], confidences, atol=1e-6, rtol=0)
    assert sent.scalars == {"quality": pytest.approx(float(confidences.mean()), abs=1e-6)}
    assert broadcast.diagnostics == {"anchor_quality": sent.scalars["quality"]}


def test_generating_anchors_leaves_the_global_model_bit_by_bit():
    model = dual().state_dict()
    before = {name: t.clone() for name, t in model.items()}
    broadcast = server(dual(), FEW).broadcast(told(model))
    assert broadcast.model.keys() == before.keys()
    assert all(torch.equal(t, before[name]) for name, t in broadcast.model.items())


def test_the_noise_depends_on_seed_and_round_alone():
    images = [
        sent_by(server(dual(), FEW, seed), t).tensors["images"]
        for seed, t in ((0, 1), (0, 1), (0, 2), (1, 1))
    ]
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    assert not torch.equal(images[0], images[3])

    half = server(dual(), FEW)
    sent_by(half, 1)  # an earlier round leaves no trace: no warm start
    assert torch.equal(sent_by(half, 2).tensors["images"], images[2])


def test_a_new_global_model_gives_new_anchors():
    half, model = server(dual(), FEW), dual().state_dict()
    before = sent_by(half, 1, model).tensors["images"]
    doubled = {name: 2 * t for name, t in model.items()}
    assert not torch.equal(sent_by(half, 1, doubled).tensors["images"], before)


def test_the_anchors_of_the_round_are_kept():
    broadcast = server(dual(), FEW).broadcast(told(dual().state_dict()))
    (kept,), (sent,) = broadcast.artifacts.values(), broadcast.attachments.values()
    assert list(broadcast.artifacts) == ["anchors"]
    assert torch.equal(kept.tensors["images"], sent.tensors["images"])
    assert kept.scalars == sent.scalars


def test_without_anchors_nothing_is_sent():
    model = dual().state_dict()
    params = FedADBParams(use_anchors=False)
    assert server(dual(), params).broadcast(told(model)) == Broadcast(model)
    assert METHOD.anchors(params) is None


def test_both_heads_are_averaged_by_samples():
    """3/4 * 1 + 1/4 * (-3) = 0 everywhere."""
    state = dual().state_dict()
    models = [{name: torch.full_like(t, v) for name, t in state.items()} for v in (1, -3)]
    updates = [ClientUpdate(0, models[0], 30), ClientUpdate(1, models[1], 10)]
    new = server(dual(), FEW).update(told(state), updates).model
    assert set(new) == set(models[0])
    assert all(t.abs().max() < 1e-7 for t in new.values())


def test_what_the_server_sends_is_what_the_client_uses():
    sent = server(dual(), FEW).broadcast(told(dual().state_dict())).attachments
    job = task(local_data(TWO_CLASSES), sent, 1, 10)
    trainer = begun(FedADBParams(anchor_label="weighted"), job)
    reference = generate_anchors(
        dual(),
        CLASSES,
        SHAPE,
        CENTRED.valid_range,
        METHOD.anchors(FEW),
        torch_generator(0, "anchors", 1),
    )
    assert torch.equal(trainer.pool.anchor_images, reference.images)
    assert trainer.pool.labels[19:].tolist() == reference.labels.tolist()
    assert torch.equal(trainer.pool.weights[19:], reference.confidences)
    assert trainer.beta == pytest.approx(0.1 ** (0.5 * reference.quality), rel=1e-9)


def test_the_agb_head_comes_first_and_is_evaluated():
    assert METHODS["fedadb"] is METHOD
    model = dual()
    assert model.evaluated_head == "agb"
    assert list(model.heads) == ["agb", "lcb"]
    assert not torch.equal(model.heads["agb"].weight, model.heads["lcb"].weight)


@pytest.mark.parametrize(("weights", "mean"), [("samples", 0.75 * 1 + 0.25 * 5), ("equal", 3.0)])
def test_the_mean_is_by_samples_or_with_equal_weights(weights, mean):
    """Of models full of 1 and 5, by clients of 30 and 10 samples."""
    model = dual().state_dict()
    replies = [
        ClientUpdate(k, {n: torch.full_like(t, v) for n, t in model.items()}, size)
        for k, (v, size) in enumerate([(1.0, 30), (5.0, 10)])
    ]
    made = server(dual(), FedADBParams(weights=weights)).update(told(model), replies)
    assert all(torch.equal(t, torch.full_like(t, mean)) for t in made.model.values())


def test_the_local_heads_accuracy_is_asked_for_where_there_is_an_lcb():
    model = dual().state_dict()
    replies = [ClientUpdate(0, model, 10)]
    for use_lcb, heads in ((True, ("lcb",)), (False, ())):
        half = server(dual(), FedADBParams(use_lcb=use_lcb))
        assert half.update(told(model), replies).other_heads == heads


def test_diagnostics_tell_the_accuracy_of_the_local_head(federation):
    """In evaluated rounds alone; the same as of a model whose AGB head is the LCB's."""
    values = {"fedadb.anchor-steps": 2, "evaluate-every": 2, "batch-size": 20}
    built = federation(strategy="fedadb", **values, **{"learning-rate": 0.05})
    built.run()
    run, model = built.strategy.run, built.strategy.global_model
    found = {
        row["name"]: float(row["value"])
        for row in read_csv(built.folder.path / "diagnostics.csv")
        if row["name"].startswith("accuracy")
    }
    rows = read_csv(built.folder.path / "diagnostics.csv")
    assert {row["round"] for row in rows if row["name"] in found} == {"2"}
    assert found.keys() == {"accuracy_lcb_head", "accuracy_mean_of_heads"}
    swapped = {n: model[n.replace("heads.agb", "heads.lcb")] for n in model}
    run.model.load_state_dict(swapped)
    test = whole_test_part(run.dataset, torch.device("cpu"), CENTRED)
    expected = evaluate(run.model, test, run.config).accuracy
    assert found["accuracy_lcb_head"] == pytest.approx(expected, abs=1e-4)
    assert expected != float(built.rows[1]["accuracy"])
