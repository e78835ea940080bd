"""SCAFFOLD, FedGMT and FedGloSS: what clients and server remember of one another."""

from dataclasses import replace

import pytest
import torch
from helpers import identical
from training_cases import lenet, linear, local_data, state_of, task

from fedadb_app.aggregation import ClientUpdate
from fedadb_app.config import RunConfig
from fedadb_app.local_training import Attachment, Trainer
from fedadb_app.settings import Settings
from strategies.fedgloss import FedGloSS, FedGloSSParams, FedGloSSTrainer
from strategies.fedgmt import FedGMT, FedGMTParams, FedGMTTrainer, divergence
from strategies.scaffold import SCAFFOLD, SCAFFOLDParams, SCAFFOLDTrainer, reach
from strategies.server import RoundInputs

STEPS = {"batch-size": 20, "learning-rate": 0.05}


def told(model, state=None, t=1, clients=4):
    return RoundInputs(t, 100, 0.99, clients, 10.0, model, ("w",), state or {})


def update(client, w, n=10, b=1.0):
    return ClientUpdate(client, {"w": torch.tensor(w), "b": torch.tensor([b])}, n)


MODEL = {"w": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0])}


# --- SCAFFOLD -------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_reach_is_how_far_a_constant_gradient_moves(momentum):
    """7 samples in batches of 3, twice: six steps of SGD on a gradient of -1, in round 3."""
    config = RunConfig(
        momentum=momentum, learning_rate=0.1, learning_rate_decay=0.5, batch_size=3, local_epochs=2
    )
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1 * 0.25, momentum=momentum)
    for _ in range(2 * 3):
        p.grad = torch.tensor([-1.0], dtype=torch.float64)
        optimizer.step()
    assert reach(config, config.learning_rate_at(3), 7) == pytest.approx(
        float(p.detach()), rel=1e-12
    )


def test_the_first_round_is_fedavg_of_equal_clients_bitwise(federation):
    ends = []
    for strategy in ("fedavg", "scaffold"):
        values = {"num-server-rounds": 1, "partition": "iid", **STEPS, "run-name": strategy}
        built = federation(4, strategy=strategy, **values)
        assert len({held.train for held in built.strategy.clients.counts.values()}) == 1
        built.run()
        ends.append(built.strategy.global_model)
    assert identical(*ends)


def test_c_is_the_mean_of_all_clients_controls(federation):
    """Two of four clients a round: the clients' own c_k, summed over all, off their states."""
    values = {"num-server-rounds": 3, "fraction-train": 0.5, "alpha": 0.5, **STEPS}
    built = federation(4, strategy="scaffold", partition="dirichlet", **values)
    kept = {}
    trained = SCAFFOLDTrainer.finish

    def finish(self):
        found = trained(self)
        kept[self.task.client] = {n: t.clone() for n, t in self.task.state.items()}
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SCAFFOLDTrainer, "finish", finish)
        built.run()
    assert 2 <= len(kept) <= 4
    names = built.strategy.run.model.parameter_names()
    for name in names:
        mean = sum(c[name].double() for c in kept.values()) / 4
        found = built.strategy.state[f"control/{name}"].double()
        torch.testing.assert_close(found, mean, atol=1e-5, rtol=1e-4)
    assert any(built.strategy.state[f"control/{n}"].abs().max() > 1e-3 for n in names)


def test_the_gradient_is_corrected_by_c_minus_c_k_and_the_client_advances():
    """One step without momentum and decay: c_k^+ is the uncorrected gradient."""
    work = task(local_data(6), batch_size=6, local_epochs=1, momentum=0.0, weight_decay=0.0)
    model = linear()
    start = state_of(model)
    c = {n: torch.full_like(t, 0.3) for n, t in start.items()}
    c_k = {n: torch.full_like(t, -0.2) for n, t in start.items()}
    work = replace(work, attachments={"control": Attachment(tensors=c)}, state=dict(c_k))
    SCAFFOLDTrainer(model, work, SCAFFOLDParams()).train()
    plain = linear()
    batch = next(iter(work.data.epoch(6, work.generator("batches"))))
    torch.nn.functional.cross_entropy(plain(batch.images), batch.labels).backward()
    for name, p in plain.named_parameters():
        moved = start[name] - work.learning_rate * (p.grad + 0.3 + 0.2)
        torch.testing.assert_close(model.state_dict()[name], moved)
        torch.testing.assert_close(work.state[name], p.grad, atol=1e-5, rtol=1e-4)


def test_scaffolds_server_by_hand():
    """Steps of 0.1 x 2 (10 samples, batches of 5, no momentum): l = 0.2 for both.

    From 0 to 2 and 4: c_k^+ - c_k = -10 and -20, K = 4, so c = -30 / 4 = -7.5; theta = eta_g 3.
    """
    config = RunConfig(
        learning_rate=0.1, learning_rate_decay=1.0, batch_size=5, local_epochs=1, momentum=0.0
    )
    half = SCAFFOLD(SCAFFOLDParams(server_learning_rate=0.5), config)
    made = half.update(told(MODEL), [update(0, [2.0, 2.0], b=3.0), update(1, [4.0, 4.0], b=5.0)])
    torch.testing.assert_close(made.state["control/w"], torch.tensor([-7.5, -7.5]))
    torch.testing.assert_close(made.model["w"].float(), torch.tensor([1.5, 1.5]))
    assert float(made.model["b"]) == 4.0
    sent = half.broadcast(told(MODEL, made.state)).attachments["control"].tensors
    assert torch.equal(sent["w"], made.state["control/w"])
    assert half.broadcast(told(MODEL)).attachments == {}
    # c_k^+ = c_k - c + (0 - 2) / 0.2, so the third client's change is -10 - (-7.5)
    again = half.update(told(MODEL, made.state, t=2), [update(2, [2.0, 2.0])])
    torch.testing.assert_close(again.state["control/w"], torch.full((2,), -7.5 - 2.5 / 4))


# --- FedGMT ---------------------------------------------------------------------------------


def test_gmts_server_by_hand():
    """From 0 to 2 and 4: mean 3, s = 6, K = 4, theta = 3 + 6/4; e = 0.9 x 0 + 0.1 x 4.5."""
    half = FedGMT(FedGMTParams(alpha=0.9))
    made = half.update(told(MODEL), [update(0, [2.0, 2.0], n=1), update(1, [4.0, 4.0], n=99)])
    torch.testing.assert_close(made.model["w"].float(), torch.full((2,), 4.5))
    torch.testing.assert_close(made.state["trajectory/w"], torch.full((2,), 0.45))
    torch.testing.assert_close(made.state["drift/w"].float(), torch.full((2,), 6.0))
    sent = half.broadcast(told(MODEL, made.state)).attachments["trajectory"].tensors
    assert sent.keys() == MODEL.keys()
    after = {n: t.float() for n, t in made.model.items()}
    again = half.update(told(after, made.state, t=2), [update(2, [5.5, 5.5])])
    torch.testing.assert_close(again.model["w"].float(), torch.full((2,), 5.5 + 7 / 4))
    torch.testing.assert_close(again.state["trajectory/w"], torch.full((2,), 0.405 + 0.725))


def test_gmts_divergence_is_kl_at_its_temperature():
    z, e = torch.randn(5, 4), torch.randn(5, 4)
    q, p = (e / 3).softmax(1), (z / 3).softmax(1)
    expected = float((q * (q / p).log()).sum(1).mean())
    assert float(divergence(z, e, 3.0)) == pytest.approx(expected, abs=1e-6)


def test_gmts_client_remembers_its_movements_and_is_pushed_along_them():
    """The gradient has v_k / beta added; the teacher is what was sent."""
    work = task(local_data(6), batch_size=6)
    start = state_of(linear())
    sent = {n: 2 * t for n, t in start.items()}
    memory = {n: torch.full_like(t, 0.4) for n, t in start.items()}
    work = replace(work, attachments={"trajectory": Attachment(tensors=sent)}, state=dict(memory))
    batch = next(iter(work.data.epoch(6, work.generator("batches"))))
    trainer = FedGMTTrainer(linear(), work, FedGMTParams(beta=5.0, gamma=0.7))
    trainer.begin()
    trainer.backward(batch)
    twin, teacher = linear(), linear()
    teacher.load_state_dict(sent)
    z, e = twin(batch.images), teacher(batch.images).detach()
    loss = torch.nn.functional.cross_entropy(z, batch.labels) + 0.7 * divergence(z, e, 3.0)
    loss.backward()
    for name, p in twin.named_parameters():
        found = dict(trainer.model.named_parameters())[name].grad
        torch.testing.assert_close(found, p.grad + 0.4 / 5.0)
    trainer.train()
    for name, p in trainer.model.named_parameters():
        torch.testing.assert_close(work.state[name], 0.4 + p.detach() - start[name])


# --- FedGloSS -------------------------------------------------------------------------------


def test_gloss_by_hand():
    """D = (3, 4) of norm 5 and radius 0.5: theta~ = theta - 0.1 D, and the step is from theta."""
    half = FedGloSS(FedGloSSParams(rho=0.5))
    made = half.update(told(MODEL), [update(0, [2.0, 3.0], n=1), update(1, [4.0, 5.0], n=9)])
    expected = torch.tensor([3.0 + 6 / 4, 4.0 + 8 / 4])  # D + s / K
    torch.testing.assert_close(made.model["w"].float(), expected)
    after = {n: t.float() for n, t in made.model.items()}
    sent = half.broadcast(told(after, made.state, t=2)).model
    torch.testing.assert_close(sent["w"], expected - 0.1 * torch.tensor([3.0, 4.0]))
    assert torch.equal(sent["b"], after["b"])
    reply = ClientUpdate(2, {"w": sent["w"] + 1.0, "b": after["b"]}, 5)
    again = half.update(told(after, made.state, t=2), [reply])
    torch.testing.assert_close(
        again.model["w"].float(), expected + 1.0 + torch.tensor([7.0, 9.0]) / 4
    )
    torch.testing.assert_close(again.state["direction/w"], torch.ones(2))


def test_gloss_perturbs_nothing_before_there_is_an_update():
    half = FedGloSS(FedGloSSParams())
    assert half.broadcast(told(MODEL)).model is MODEL


@pytest.mark.parametrize(("t", "share"), [(1, 0.25), (3, 0.75), (4, 1.0), (9, 1.0)])
def test_gloss_grows_its_radii(t, share):
    assert FedGloSSParams(rho_rounds=4).growth(t) == share
    assert FedGloSSParams().growth(t) == 1.0


def test_gloss_takes_the_gradient_at_the_perturbed_point_with_admms_terms():
    work = task(local_data(6, (1, 16, 16)), batch_size=6)
    start = state_of(lenet())
    memory = {n: torch.full_like(t, 0.4) for n, t in start.items()}
    work = replace(work, state=dict(memory))
    batch = next(iter(work.data.epoch(6, work.generator("batches"))))
    trainer = FedGloSSTrainer(lenet(), work, FedGloSSParams(rho_local=0.2, beta=5.0))
    trainer.begin()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.add_(0.01)
    before = state_of(trainer.model)
    trainer.backward(batch)
    assert identical(trainer.model.state_dict(), before)

    def gradients(model):
        loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
        return torch.autograd.grad(loss, list(model.parameters()))

    twin = lenet()
    twin.load_state_dict(before)
    g = gradients(twin)
    norm = torch.stack([x.norm() for x in g]).norm()
    with torch.no_grad():
        for p, x in zip(twin.parameters(), g, strict=True):
            p.add_(0.2 * x / norm)
    for (name, p), x in zip(trainer.model.named_parameters(), gradients(twin), strict=True):
        expected = x + (before[name] - start[name] + 0.4) / 5.0
        torch.testing.assert_close(p.grad, expected, atol=1e-6, rtol=1e-4)


def test_gloss_remembers_its_movements():
    work = task(local_data(6), batch_size=3, local_epochs=2)
    total = {n: torch.zeros_like(t) for n, t in linear().named_parameters()}
    for t in (1, 2):
        model = linear()
        start = state_of(model)
        FedGloSSTrainer(model, replace(work, server_round=t), FedGloSSParams()).train()
        total = {n: total[n] + p.detach() - start[n] for n, p in model.named_parameters()}
    for name, memory in work.state.items():
        torch.testing.assert_close(memory, total[name])


def test_plain_steps_where_gloss_is_off():
    work = task(local_data(6), batch_size=3)
    ends = []
    for trainer in (
        FedGloSSTrainer(linear(), work, FedGloSSParams(rho_local=0.0, beta=0.0)),
        Trainer(linear(), work, Settings()),
    ):
        trainer.train()
        ends.append(trainer.model.state_dict())
    assert identical(*ends)
