"""FedProx, MOON, FedLC and FedVLS: their losses and gradients, by hand and element by element."""

import math

import pytest
import torch
from training_cases import CLASSES, CPU, lenet, linear, local_data, state_of, task

from fedadb_app.data.batches import LocalData
from fedadb_app.local_training import Trainer
from fedadb_app.settings import Settings
from strategies.fedlc import FedLCParams, FedLCTrainer, calibrated_loss
from strategies.fedprox import FedProxParams, FedProxTrainer
from strategies.fedvls import (
    FedVLSParams,
    FedVLSTrainer,
    logit_suppression,
    vacant_distillation,
)
from strategies.moon import MOONParams, MOONTrainer, contrast


def first_batch(work):
    return next(iter(work.data.epoch(len(work.data), work.generator("batches"))))


def of_labels(labels, shape=(1, 2, 2)):
    images = torch.randint(
        0, 256, (len(labels), *shape), generator=torch.Generator().manual_seed(1)
    )
    rows = torch.arange(len(labels))
    return LocalData(images.to(torch.uint8), rows, torch.tensor(labels), CLASSES, CPU)


# --- FedProx --------------------------------------------------------------------------------


def test_prox_adds_mu_times_the_distance_and_reports_the_plain_loss():
    """d/dtheta of (0.6 / 2) ||theta - theta^(t-1)||^2 is 0.6 (theta - theta^(t-1)), all 1 away."""
    work = task(local_data(6))
    batch, gradients, losses = first_batch(work), [], []
    for trainer in (
        FedProxTrainer(linear(), work, FedProxParams(mu=0.6)),
        Trainer(linear(), work, Settings()),
    ):
        trainer.begin()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.add_(1.0)
        losses.append(trainer.backward(batch))
        gradients.append([p.grad for p in trainer.model.parameters()])
    assert torch.equal(*losses)
    for pulled, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(pulled - plain, torch.full_like(plain, 0.6))


def test_a_large_mu_holds_the_model_where_it_was():
    moved = []
    for mu in (0.0, 20.0):
        model = linear()
        start = state_of(model)
        FedProxTrainer(model, task(local_data(6), local_epochs=5), FedProxParams(mu=mu)).train()
        moved.append(sum(float((t - start[n]).norm()) for n, t in model.state_dict().items()))
    assert moved[1] < 0.3 * moved[0]


# --- MOON -----------------------------------------------------------------------------------


def test_contrast_by_hand():
    """Cosines 1 and 0 at tau 0.5: -log(e^2 / (e^2 + e^0)); equal cosines: log 2."""
    z = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    across = torch.tensor([[0.0, 5.0], [-1.0, 0.0]])
    expected = -math.log(math.exp(2) / (math.exp(2) + 1))
    assert float(contrast(z, 7 * z, across, 0.5)) == pytest.approx(expected, rel=1e-6)
    assert float(contrast(z, across, across, 0.5)) == pytest.approx(math.log(2), rel=1e-6)


def test_moon_takes_the_clients_own_model_of_its_last_round():
    """Without one it is FedAvg; with one the loss is H + mu times the contrast, by hand."""
    work = task(local_data(12, (1, 16, 16)), batch_size=6)
    first, plain = lenet(), lenet()
    MOONTrainer(first, work, MOONParams()).train()
    Trainer(plain, task(local_data(12, (1, 16, 16)), batch_size=6), Settings()).train()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(first.state_dict()[name], tensor)
        assert torch.equal(work.state[name], tensor)

    trainer = MOONTrainer(lenet(), work, MOONParams(mu=2.0, temperature=0.25))
    trainer.begin()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.mul_(1.1)
    batch = first_batch(work)
    features = [m.features(batch.images) for m in (trainer.model, lenet(), plain)]
    near, far = (
        torch.stack(
            [torch.dot(a, b) / a.norm() / b.norm() for a, b in zip(features[0], other, strict=True)]
        )
        for other in features[1:]
    )
    ratio = (near / 0.25).exp() / ((near / 0.25).exp() + (far / 0.25).exp())
    cross = torch.nn.functional.cross_entropy(trainer.model(batch.images), batch.labels)
    expected = cross - 2.0 * ratio.log().mean()
    torch.testing.assert_close(trainer.loss(batch), expected)
    assert abs(float((expected - cross).detach())) > 0.1


def test_moon_without_its_term_keeps_no_model():
    work = task(local_data(6))
    MOONTrainer(linear(), work, MOONParams(mu=0.0)).train()
    assert work.state == {}


# --- FedLC ----------------------------------------------------------------------------------


def test_calibrated_loss_element_by_element():
    """Margins 0.8 n_c^(-1/4) for 16, 1 and 0 samples; the third class is in no sum."""
    logits = torch.tensor([[1.0, -0.5, 9.0], [0.2, 0.4, -9.0]], requires_grad=True)
    labels, counts, tau = [0, 1], [16, 1, 0], 0.8
    total = 0.0
    for z, y in zip(logits.detach().tolist(), labels, strict=True):
        powers = [math.exp(z[c] - tau * counts[c] ** -0.25) for c in (0, 1)]
        total -= math.log(powers[y] / sum(powers))
    found = calibrated_loss(logits, torch.tensor(labels), torch.tensor(counts), tau)
    assert float(found) == pytest.approx(total / 2, rel=1e-6)
    found.backward()
    assert logits.grad[:, 2].tolist() == [0.0, 0.0]
    assert logits.grad[:, :2].abs().min() > 0.01


def test_a_client_of_one_class_stays_finite_and_pushes_nothing():
    logits = torch.randn(4, 3, requires_grad=True)
    loss = calibrated_loss(logits, torch.ones(4).long(), torch.tensor([0, 4, 0]), 1.0)
    loss.backward()
    assert float(loss) == 0.0
    assert not logits.grad.any()


def test_equal_classes_are_calibrated_alike_and_nothing_changes():
    """All margins equal: the softmax does not see them."""
    data = of_labels([0, 1, 2] * 4)
    ends = []
    for trainer in (
        FedLCTrainer(linear(), task(data), FedLCParams(tau=3.0)),
        Trainer(linear(), task(data), Settings()),
    ):
        trainer.train()
        ends.append(trainer.model.state_dict())
    for name, tensor in ends[1].items():
        torch.testing.assert_close(ends[0][name], tensor, atol=1e-5, rtol=0)


# --- FedVLS ---------------------------------------------------------------------------------


def test_suppression_element_by_element():
    """sum_c p_c log((1/N) sum_i exp(m_ic)), m_ic = z_ic - log p_c - log C, own classes 0."""
    logits = torch.tensor([[0.5, -1.0, 0.3], [0.1, 0.7, -0.2]])
    labels, shares = [0, 1], [0.75, 0.25, 0.0]
    expected = 0.0
    for c in (0, 1):
        powers = [
            1.0
            if labels[i] == c
            else math.exp(float(logits[i, c]) - math.log(shares[c] + 1e-9) - math.log(3))
            for i in (0, 1)
        ]
        expected += shares[c] * math.log(sum(powers) / 2)
    found = logit_suppression(logits, torch.tensor(labels), torch.tensor(shares))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_distillation_is_among_vacant_classes_alone():
    """KL of the two softmaxes over classes 1 and 3; other logits do not matter."""
    student, teacher = torch.randn(5, 4), torch.randn(5, 4)
    vacant = torch.tensor([False, True, False, True])
    q, p = (
        z[:, [1, 3]].exp() / z[:, [1, 3]].exp().sum(1, keepdim=True) for z in (teacher, student)
    )
    expected = float((q * (q / p).log()).sum(1).mean())
    assert float(vacant_distillation(student, teacher, vacant)) == pytest.approx(expected, abs=1e-6)
    student[:, 0] += 100.0
    assert float(vacant_distillation(student, teacher, vacant)) == pytest.approx(expected, abs=1e-6)


def test_the_objective_is_the_sum_of_the_three():
    work = task(of_labels([0] * 6))  # classes 1 and 2 are vacant
    trainer = FedVLSTrainer(linear(), work, FedVLSParams(distillation=0.7, suppression=0.3))
    trainer.begin()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.mul_(1.5)
    batch = first_batch(work)
    z, teacher = trainer.model(batch.images), linear()(batch.images)
    shares = torch.tensor([1.0, 0.0, 0.0])
    cross = -(z + (shares + 1e-9).log()).log_softmax(1)[:, 0].mean()
    kept = vacant_distillation(z, teacher, shares == 0)
    held = logit_suppression(z, batch.labels, shares)
    torch.testing.assert_close(trainer.loss(batch), cross + 0.7 * kept + 0.3 * held)
    assert float(kept) > 1e-3


@pytest.mark.parametrize("labels", [[0, 1, 2] * 3, [0, 1] * 4])
def test_without_two_vacant_classes_there_is_no_teacher(labels):
    trainer = FedVLSTrainer(linear(), task(of_labels(labels)), FedVLSParams())
    trainer.begin()
    assert trainer.teacher is None
    trainer.train()
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_with_equal_shares_and_no_further_terms_it_is_cross_entropy():
    data, params = of_labels([0, 1, 2] * 4), FedVLSParams(distillation=0, suppression=0)
    trainer = FedVLSTrainer(linear(), task(data), params)
    trainer.begin()
    batch = first_batch(task(data))
    plain = torch.nn.functional.cross_entropy(trainer.model(batch.images), batch.labels)
    torch.testing.assert_close(trainer.loss(batch), plain)
