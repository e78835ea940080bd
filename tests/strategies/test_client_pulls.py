"""FedACG and FedDyn on the client: the gradient of the pull, and what a client remembers."""

from dataclasses import replace

import torch
from training_cases import linear, local_data, state_of, task

from fedadb_app.local_training import Attachment, Trainer
from fedadb_app.settings import Settings
from strategies.fedacg import FedACGParams, FedACGTrainer
from strategies.feddyn import FedDynParams, FedDynTrainer


def test_acg_adds_the_gradient_of_beta_times_the_squared_distance():
    """d/dtheta of 0.3 ||theta - theta~||^2 is 0.6 (theta - theta~); all are 1 away: 0.6."""
    work = task(local_data(6))
    batch = next(iter(work.data.epoch(6, work.generator("batches"))))
    gradients = []
    for trainer_of in (
        lambda model: FedACGTrainer(model, work, FedACGParams(beta=0.3)),
        lambda model: Trainer(model, work, Settings()),
    ):
        model = linear()
        trainer = trainer_of(model)
        trainer.begin()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        trainer.backward(batch)
        gradients.append([p.grad for p in model.parameters()])
    for pulled, plain in zip(*gradients, strict=True):
        torch.testing.assert_close(pulled - plain, torch.full_like(plain, 0.6))


def test_dyn_remembers_the_sum_of_its_movements():
    """v_k after two rounds is the first round's movement plus the second's."""
    first = replace(
        task(local_data(6), batch_size=3, local_epochs=2),
        attachments={"feddyn": Attachment(scalars={"mean-examples": 6.0})},
    )
    total = {name: torch.zeros_like(p) for name, p in linear().named_parameters()}
    for work in (first, replace(first, server_round=2)):  # which share the client's state
        model = linear()
        start = state_of(model)
        FedDynTrainer(model, work, FedDynParams()).train()
        moved = {name: p.detach() - start[name] for name, p in model.named_parameters()}
        assert all(step.abs().max() > 1e-4 for step in moved.values())
        total = {name: total[name] + step for name, step in moved.items()}
    for name, memory in first.state.items():
        torch.testing.assert_close(memory, total[name])
    assert first.state.keys() == total.keys()


def test_dyn_clips_loss_and_linear_term_alone():
    """grad H + alpha (v - theta^(t-1)) has its norm cut to `clip`; then alpha theta is added."""
    alpha, clip = 0.5, 0.01
    work = task(local_data(6))
    sent = {"feddyn": Attachment(scalars={"mean-examples": 6.0})}  # alpha_k = alpha
    start = linear()
    memory = {n: torch.full_like(p, 0.3) for n, p in start.named_parameters()}
    work = replace(work, attachments=sent, state=dict(memory))
    batch = next(iter(work.data.epoch(6, work.generator("batches"))))

    def gradient(trainer):
        trainer.begin()
        with torch.no_grad():
            for p in trainer.model.parameters():
                p.mul_(2.0)  # away from theta^(t-1)
        trainer.backward(batch)
        return {n: p.grad for n, p in trainer.model.named_parameters()}

    plain = gradient(Trainer(linear(), work, Settings()))
    linear_term = {n: alpha * (memory[n] - p.detach()) for n, p in start.named_parameters()}
    bounded = {n: plain[n] + linear_term[n] for n in plain}
    norm = torch.stack([g.norm() for g in bounded.values()]).norm()
    assert norm > 10 * clip
    found = gradient(FedDynTrainer(linear(), work, FedDynParams(alpha=alpha, clip=clip)))
    loose = gradient(FedDynTrainer(linear(), work, FedDynParams(alpha=alpha, clip=1e6)))
    free = gradient(FedDynTrainer(linear(), work, FedDynParams(alpha=alpha)))
    for name, p in start.named_parameters():
        expected = clip / norm * bounded[name] + alpha * 2.0 * p.detach()
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(loose[name], free[name])
