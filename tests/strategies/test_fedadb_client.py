"""FedADB's client half: FedAvg where its parts are off, and what its parts do."""

import pytest
import torch
from fedadb_cases import (
    ALL_CLASSES,
    CLASSES,
    LENET,
    OFF,
    RESNET,
    TWO_CLASSES,
    anchors,
    as_fedadb,
    begun,
    dual,
    local_data,
    server,
    single,
    task,
    told,
)
from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.data.batches import Batch
from fedadb_app.dual_branch import BalancedSampler
from fedadb_app.local_training import Attachment, Trainer
from strategies.fedadb import FedADBParams, FedADBTrainer
from strategies.registry import fedavg
from strategies.server import Broadcast

# --- switched off, it is FedAvg -------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "flip", "precision"),
    [(LENET, False, "fp32"), (LENET, True, "fp32"), (LENET, False, "bf16"), (RESNET, True, "fp32")],
)
def test_without_anchors_lcb_and_balance_a_round_is_fedavgs_bitwise(spec, flip, precision):
    own = server(dual(spec), OFF)
    plain = fedavg.FedAvg(fedavg.FedAvgParams())
    start = dual(spec).state_dict()
    assert own.broadcast(told(start)) == Broadcast(start)

    replies: dict[str, list[ClientUpdate]] = {"own": [], "plain": []}
    for labels in (TWO_CLASSES, ALL_CLASSES[:6]):
        data = local_data(labels, spec.image_shape, flip)
        mine, theirs = dual(spec), single(spec)
        job = task(data, precision=precision, local_epochs=1 if spec is RESNET else 2)
        metrics = FedADBTrainer(mine, job, OFF).train()
        assert metrics == Trainer(theirs, job, fedavg.FedAvgParams()).train()
        replies["own"].append(ClientUpdate(len(labels), mine.state_dict(), len(labels)))
        replies["plain"].append(ClientUpdate(len(labels), theirs.state_dict(), len(labels)))

    new = own.update(told(start), replies["own"]).model
    expected = as_fedadb(plain.update(told(start), replies["plain"]).model)
    assert set(new) - set(expected) == {"heads.lcb.weight", "heads.lcb.bias"}
    assert all(torch.equal(new[name], tensor) for name, tensor in expected.items())
    assert not torch.equal(new["heads.agb.weight"], start["heads.agb.weight"])
    for name in ("heads.lcb.weight", "heads.lcb.bias"):
        assert all(torch.equal(update.arrays[name], start[name]) for update in replies["own"])
        torch.testing.assert_close(new[name], start[name], atol=1e-7, rtol=0)


def test_with_beta_zero_and_natural_batches_features_and_agb_follow_fedavg():
    params = FedADBParams(use_anchors=False, sampling="natural", beta="0")
    data = local_data(TWO_CLASSES)
    mine, theirs = dual(), single()
    FedADBTrainer(mine, task(data), params).train()
    Trainer(theirs, task(data), fedavg.FedAvgParams()).train()
    found = mine.state_dict()
    for name, tensor in as_fedadb(theirs.state_dict()).items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)


def test_with_the_lcb_it_is_not_fedavg():
    """So that the two tests above can fail."""
    params = FedADBParams(use_anchors=False, sampling="natural")
    data = local_data(TWO_CLASSES)
    mine, theirs = dual(), single()
    FedADBTrainer(mine, task(data), params).train()
    Trainer(theirs, task(data), fedavg.FedAvgParams()).train()
    found, expected = mine.state_dict(), as_fedadb(theirs.state_dict())
    assert (found["features.0.weight"] - expected["features.0.weight"]).abs().max() > 1e-4


# --- the client half ------------------------------------------------------------------------


def test_steps_and_both_batches_are_those_of_the_local_loader():
    sizes: list[tuple[int, int]] = []

    class Watched(FedADBTrainer):
        def begin(self) -> None:
            super().begin()
            draw = self.sampler.draw
            self.sampler.draw = lambda size: drawn.append(draw(size)) or drawn[-1]

        def loss(self, batch: Batch) -> Tensor:
            before = len(drawn)
            found = super().loss(batch)
            assert len(drawn) == before + 1
            sizes.append((len(drawn[-1]), len(batch)))
            return found

    drawn: list[Tensor] = []
    job = task(local_data(TWO_CLASSES), anchors(), local_epochs=5)
    Watched(dual(), job, FedADBParams()).train()
    assert sizes == 5 * [(8, 8), (8, 8), (3, 3)]

    # 95 draws, a quarter a class: within 4 sigma, where unbalanced draws give 19/23 to two classes
    pool = torch.tensor([*TWO_CLASSES, 0, 1, 2, 3])
    classes = torch.bincount(pool[torch.cat(drawn)], minlength=CLASSES)
    assert all(abs(int(n) - 95 / 4) < 4 * (95 * 3 / 16) ** 0.5 for n in classes)


def test_one_step_is_the_equations():
    """theta - eta (g + decay theta), g of L_AGB + beta L_LCB on one drawn batch each."""
    job = task(local_data(TWO_CLASSES), anchors(0.8), 5, 20, local_epochs=1, batch_size=64)
    seen: dict[str, Tensor] = {}

    class Watched(FedADBTrainer):
        def begin(self) -> None:
            super().begin()
            draw = self.sampler.draw
            self.sampler.draw = lambda size: seen.setdefault("agb", draw(size))

    model, twin = dual(), dual()
    metrics = Watched(model, job, FedADBParams()).train()

    local = job.data.images.float() / 127.5 - 1
    images = torch.cat([local, job.attachments["anchors"].tensors["images"]])
    labels = torch.tensor([*TWO_CLASSES, 0, 1, 2, 3])
    agb = seen["agb"]
    assert (agb >= 19).any()
    logits_agb = twin.heads["agb"](twin.features(images[agb]))
    logits_lcb = twin.heads["lcb"](twin.features(local))
    loss_agb = -logits_agb.log_softmax(1)[torch.arange(19), labels[agb]].mean()
    loss_lcb = -logits_lcb.log_softmax(1)[torch.arange(19), labels[:19]].mean()
    loss = loss_agb + 0.25**0.4 * loss_lcb
    loss.backward()
    assert metrics["train-loss"] == pytest.approx(loss.item(), abs=1e-6)
    for mine, p in zip(model.parameters(), twin.parameters(), strict=True):
        expected = p - 0.05 * (p.grad + 1e-2 * p)
        torch.testing.assert_close(mine.data, expected.data, atol=1e-6, rtol=0)


def test_only_the_training_loss_leaves_the_client():
    metrics = FedADBTrainer(
        dual(), task(local_data(TWO_CLASSES), anchors()), FedADBParams()
    ).train()
    assert set(metrics) == {"train-loss"}


def test_without_the_lcb_its_head_stays():
    model = dual()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    params = FedADBParams(use_lcb=False)
    FedADBTrainer(model, task(local_data(TWO_CLASSES), anchors()), params).train()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) is name.startswith("heads.lcb")


@pytest.mark.parametrize("anchor_label", ["hard", "soft", "weighted"])
@pytest.mark.parametrize("spec", [LENET, pytest.param(RESNET, marks=pytest.mark.slow)])
def test_bf16_trains(spec, anchor_label):
    params = FedADBParams(anchor_label=anchor_label)
    sent = anchors()
    if spec is RESNET:
        tensors = {**sent["anchors"].tensors, "images": torch.rand(CLASSES, 3, 16, 16)}
        sent = {"anchors": Attachment(tensors, sent["anchors"].scalars)}
    model = dual(spec)
    data = local_data(TWO_CLASSES[:9], spec.image_shape)
    job = task(data, sent, precision="bf16", local_epochs=1)
    metrics = FedADBTrainer(model, job, params).train()
    assert 0 < metrics["train-loss"] < 20
    assert all(torch.isfinite(t).all() for t in model.state_dict().values())
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_natural_batches_are_fedavgs_whatever_the_agb_draws():
    """Both methods of one seed go through a client's samples in the same order."""

    seen: dict[str, list[list[int]]] = {"own": [], "plain": []}

    class Own(FedADBTrainer):
        def loss(self, batch: Batch) -> Tensor:
            seen["own"].append(batch.indices.tolist())
            return super().loss(batch)

    class Plain(Trainer[fedavg.FedAvgParams]):
        def loss(self, batch: Batch) -> Tensor:
            seen["plain"].append(batch.indices.tolist())
            return super().loss(batch)

    job = task(local_data(TWO_CLASSES), anchors())
    Own(dual(), job, FedADBParams()).train()
    Plain(single(), job, fedavg.FedAvgParams()).train()
    assert len(seen["own"]) == 2 * 3
    assert seen["own"] == seen["plain"]


def test_the_agb_draws_from_a_stream_of_its_own():
    job = task(local_data(TWO_CLASSES), anchors())
    trainer = begun(FedADBParams(), job)
    shuffles = BalancedSampler(trainer.pool.labels, job.generator("batches"))
    assert not torch.equal(trainer.sampler.draw(64), shuffles.draw(64))
