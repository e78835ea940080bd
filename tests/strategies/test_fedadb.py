"""FedADB's two halves: what is left of it when its parts are off, and what its parts do."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.anchors import AnchorSettings, generate_anchors
from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import ImageSchema
from fedadb_app.data.batches import Batch, LocalData
from fedadb_app.data.preparation import CENTRED
from fedadb_app.dual_branch import BalancedSampler
from fedadb_app.errors import ConfigError
from fedadb_app.local_training import Attachment, LocalTask, Trainer
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier
from fedadb_app.randomness import torch_generator
from strategies.fedadb import METHOD, FedADB, FedADBParams, FedADBTrainer
from strategies.registry import METHODS, fedavg, read_run_config
from strategies.server import Broadcast, RoundInputs, Workbench

CLASSES, SHAPE = 4, (1, 16, 16)
CPU = torch.device("cpu")
OFF = FedADBParams(use_anchors=False, use_lcb=False, sampling="natural")
LENET = ModelSpec("lenet", "batch", SHAPE, CLASSES)
RESNET = ModelSpec("resnet18", "batch", (3, 16, 16), CLASSES)


def config(**values: Any) -> RunConfig:
    return RunConfig(**{"local_epochs": 2, "batch_size": 8, "weight_decay": 1e-2, **values})


def local_data(
    labels: list[int], shape: tuple[int, int, int] = SHAPE, flip: bool = False
) -> LocalData:
    rng = np.random.default_rng(len(labels))
    images = rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8)
    array = np.array(labels, np.int64)
    return LocalData.from_arrays(images, array, np.arange(len(labels)), CLASSES, CPU, flip)


TWO_CLASSES = [0] * 14 + [2] * 5
ALL_CLASSES = [0, 1, 2, 3] * 4


def task(
    data: LocalData,
    attachments: Mapping[str, Attachment] | None = None,
    server_round: int = 1,
    num_rounds: int = 10,
    **values: Any,
) -> LocalTask:
    return LocalTask(0, server_round, num_rounds, 0.05, config(**values), data, attachments or {})


def dual(spec: ModelSpec = LENET) -> ImageClassifier:
    return build_classifier(spec, 0, METHOD.heads)


def single(spec: ModelSpec = LENET) -> ImageClassifier:
    return build_classifier(spec, 0, fedavg.METHOD.heads)


def server(model: ImageClassifier, params: FedADBParams, seed: int = 0) -> FedADB:
    schema = ImageSchema(tuple(map(str, range(CLASSES))), SHAPE)
    return METHOD.server.of_run(params, Workbench(model, schema, CENTRED.valid_range, seed))


def told(model: Mapping[str, Tensor], t: int = 1) -> RoundInputs:
    return RoundInputs(t, 10, 0.99, 2, 10.0, dict(model), dual().parameter_names())


def anchors(quality: float = 0.8) -> dict[str, Attachment]:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "images": torch.rand(CLASSES, *SHAPE, generator=generator) * 2 - 1,
        "labels": torch.arange(CLASSES),
        "confidences": torch.tensor([0.9, 0.7, 0.8, 0.8]),
    }
    return {"anchors": Attachment(tensors, {"quality": quality})}


def as_fedadb(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("heads.head", "heads.agb"): tensor for name, tensor in state.items()}


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


# --- beta -----------------------------------------------------------------------------------


def begun(params: FedADBParams, job: LocalTask) -> FedADBTrainer:
    trainer = FedADBTrainer(dual(), job, params)
    trainer.begin()
    return trainer


@pytest.mark.parametrize(
    ("labels", "t", "total", "tau", "expected"),
    [
        (TWO_CLASSES, 5, 20, 0.8, 0.25 ** (0.5 * 0.8)),
        ([1], 1, 100, 0.9, 0.01 ** (0.75 * 0.9)),
        (TWO_CLASSES, 20, 20, 0.8, 1.0),
        (ALL_CLASSES, 1, 1000, 0.9, 1.0),
    ],
)
def test_beta_counts_the_clients_own_classes_and_not_the_anchors(labels, t, total, tau, expected):
    job = task(local_data(labels), anchors(tau), t, total)
    assert begun(FedADBParams(), job).beta == pytest.approx(expected, rel=1e-12)


def test_without_anchors_beta_is_one():
    job = task(local_data(TWO_CLASSES), server_round=1, num_rounds=1000)
    assert begun(FedADBParams(use_anchors=False), job).beta == 1


@pytest.mark.parametrize(("text", "number"), [("0.5", 0.5), ("0", 0.0), ("1", 1.0), ("2e-1", 0.2)])
def test_a_fixed_beta_is_used_whatever_the_round(text, number):
    for t in (1, 10):
        job = task(local_data(TWO_CLASSES), anchors(), t)
        assert begun(FedADBParams(beta=text), job).beta == number


def test_beta_weighs_the_lcb_in_the_loss():
    """L(beta) is a straight line through L_AGB."""
    losses = []
    for beta in ("0", "0.5", "2"):
        trainer = begun(FedADBParams(beta=beta), task(local_data(TWO_CLASSES), anchors()))
        batch = next(trainer.task.data.epoch(19, torch.Generator().manual_seed(0)))
        losses.append(trainer.loss(batch).item())
    assert losses[1] - losses[0] > 0.1
    assert losses[2] - losses[0] == pytest.approx(4 * (losses[1] - losses[0]), abs=1e-5)


# --- parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("beta", ["abc", "-1", "nan", "inf", "-inf", "", "Dynamic"])
def test_no_other_text_is_a_beta(beta):
    with pytest.raises(ConfigError, match=f'fedadb.*beta="{beta}" is not allowed'):
        read_run_config({"fedadb.beta": beta})


def test_natural_batches_with_anchors_are_refused():
    with pytest.raises(ConfigError, match=r'sampling="natural".*use-anchors=false'):
        read_run_config({"fedadb.sampling": "natural"})
    values = {"fedadb.sampling": "natural", "fedadb.use-anchors": False}
    assert isinstance(read_run_config(values)[2], FedADBParams)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("anchors-per-class", 0),
        ("anchor-steps", -1),
        ("anchor-learning-rate", 0.0),
        ("anchor-l2", -1e-4),
        ("anchor-noise", -1.0),
        ("anchor-label", "firm"),
        ("sampling", "random"),
    ],
)
def test_values_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=rf"fedadb\.{key}"):
        read_run_config({f"fedadb.{key}": value})


def test_anchor_settings_are_the_keys_of_their_names():
    params = FedADBParams(
        anchors_per_class=3,
        anchor_steps=7,
        anchor_learning_rate=0.3,
        anchor_l2=0.01,
        anchor_noise=0.5,
    )
    assert params.anchor_settings() == AnchorSettings(
        per_class=3, steps=7, learning_rate=0.3, l2=0.01, noise=0.5
    )


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
@pytest.mark.parametrize("spec", [LENET, RESNET])
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


# --- the server half ------------------------------------------------------------------------

FEW = FedADBParams(anchors_per_class=2, anchor_steps=3)


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
