"""FedEXP, FedACG and FedDyn on the server: hand-computed updates (BASELINES.md 6, 9, 2)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.aggregation import ClientUpdate, in_types_of, weighted_mean
from strategies.fedacg import FedACG, FedACGParams
from strategies.fedavg import FedAvg, FedAvgParams
from strategies.feddyn import FedDyn, FedDynParams
from strategies.fedexp import FedEXP, FedEXPParams, extrapolation
from strategies.server import RoundInputs


class Server:
    """A half with one parameter `w` and one buffer `b`, and no Flower, run or folder around it."""

    def __init__(self, half, start, clients=4, decay=0.99):
        self.half = half
        self.model = {"w": torch.tensor(start), "b": torch.tensor([1.0])}
        self.state, self.made = {}, None
        self.clients, self.decay = clients, decay

    def told(self, number):
        names = ("w",)
        return RoundInputs(
            number, 100, self.decay, self.clients, 10.0, self.model, names, self.state
        )

    def sent(self, number):
        return self.half.broadcast(self.told(number)).model

    def advance(self, number, replies):
        """Conclude a round as the strategy does; return the new `w`."""
        self.made = self.half.update(self.told(number), replies)
        self.model, self.state = in_types_of(self.model, self.made.model), self.made.state
        return self.model["w"].double()


def updates(*models, sizes=None, buffers=None):
    sizes = sizes or [10] * len(models)
    buffers = buffers or [1.0] * len(models)
    return [
        ClientUpdate(k, {"w": torch.tensor(w), "b": torch.tensor([b])}, n)
        for k, (w, n, b) in enumerate(zip(models, sizes, buffers, strict=True))
    ]


# --- FedEXP ---------------------------------------------------------------------------------


def test_exp_identical_updates_are_fedavg():
    """All Delta_k = Delta, so eta_g = max(1, ||Delta||^2 / (2 (||Delta||^2 + eps))) = 1."""
    exp = Server(FedEXP(FedEXPParams()), [1.0, 2.0])
    avg = Server(FedAvg(FedAvgParams()), [1.0, 2.0])
    same = updates([2.0, 4.0], [2.0, 4.0], [2.0, 4.0])
    assert torch.allclose(exp.advance(1, same), avg.advance(1, same), atol=1e-6)
    assert exp.made.diagnostics["extrapolation"] == 1.0


@pytest.mark.parametrize("participants", [2, 3, 4])
def test_exp_orthogonal_updates_are_stretched_by_half_their_number(participants):
    """m updates 2 e_k: sum p_k ||Delta_k||^2 = 4, ||Delta||^2 = m (2/m)^2 = 4/m, so m/2."""
    start = [0.0] * participants
    models = [[2.0 if i == k else 0.0 for i in range(participants)] for k in range(participants)]
    exp = Server(FedEXP(FedEXPParams(eps=0.0)), start)
    result = exp.advance(1, updates(*models))
    expected = torch.full((participants,), 2.0 / participants * max(1.0, participants / 2))
    assert torch.allclose(result, expected.double(), atol=1e-6)


def test_exp_eps_decays_with_the_square_of_the_learning_rate():
    """eps_t = eps * decay^(2 (t-1)): eps in round 1, eps / 16 in round 3 with decay 1/2."""
    models = updates([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    eps = 0.1
    exp = Server(FedEXP(FedEXPParams(eps=eps)), [0.0, 0.0, 0.0], decay=0.5)
    exp.advance(1, models)
    first = exp.made.diagnostics["extrapolation"]
    exp.model["w"] = torch.zeros(3)
    exp.advance(3, models)
    third = exp.made.diagnostics["extrapolation"]
    # sum p ||delta||^2 = 1, ||mean||^2 = 1/3
    assert first == pytest.approx(max(1, 1 / (2 * (1 / 3 + eps))), rel=1e-6)
    assert third == pytest.approx(1 / (2 * (1 / 3 + eps * 0.5**4)), rel=1e-6)


def test_exp_averages_buffers_and_evaluates_two_iterates():
    """Step 3/2 of the mean (4/3, 4/3, 4/3) is (2, 2, 2); the buffer stays (1 + 2 + 6) / 3 = 3."""
    exp = Server(FedEXP(FedEXPParams(eps=0.0)), [0.0, 0.0, 0.0])
    opposite = updates([4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0], buffers=[1.0, 2.0, 6.0])
    first = exp.advance(1, opposite)
    assert torch.allclose(first, torch.full((3,), 2.0).double())
    assert float(exp.model["b"]) == 3.0  # the plain mean, though the step is 1.5
    assert torch.equal(exp.made.evaluated["w"].double(), first)
    second = exp.advance(2, updates([4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]))
    assert torch.allclose(exp.made.evaluated["w"].double(), (first + second) / 2, atol=1e-6)
    assert torch.equal(exp.made.also_evaluated["last_iterate"]["w"].double(), second)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=5))
@settings(max_examples=60)
def test_exp_never_shrinks_the_step_and_a_huge_eps_is_fedavg(rows):
    deltas = [{"w": torch.tensor(row, dtype=torch.float64)} for row in rows]
    weights = [1 / len(rows)] * len(rows)
    mean = weighted_mean(deltas, weights)
    assert extrapolation(deltas, mean, weights, 1e-3) >= 1.0
    assert extrapolation(deltas, mean, weights, 1e9) == 1.0
    assert extrapolation(deltas, mean, weights, 0.0) >= 1.0


# --- FedACG ---------------------------------------------------------------------------------


def test_acg_global_model_is_the_mean_whatever_the_momentum():
    """theta^(t-1) + lambda m + (mean - theta~) = mean, as theta~ = theta^(t-1) + lambda m."""
    acg = Server(FedACG(FedACGParams(momentum=0.85)), [0.0, 0.0])
    for number, target in enumerate(([1.0, 1.0], [3.0, 0.0], [-2.0, 5.0]), start=1):
        before = acg.model["w"].double()
        momentum = acg.state.get("momentum/w", torch.zeros(2)).double()
        ahead = acg.sent(number)
        # theta~ - theta = lambda m
        assert torch.allclose(ahead["w"].double() - before, 0.85 * momentum, atol=1e-6)
        assert float(ahead["b"]) == float(acg.model["b"])
        other = [2 * t for t in target]
        after = acg.advance(number, updates(target, other))
        assert torch.allclose(after, 1.5 * torch.tensor(target).double(), atol=1e-6)
        # m^t = lambda m + (mean - theta~)
        mean = 1.5 * torch.tensor(target).double()
        expected = 0.85 * momentum + mean - ahead["w"].double()
        assert torch.allclose(acg.state["momentum/w"].double(), expected, atol=1e-6)


def test_acg_momentum_of_a_constant_step_is_a_geometric_sum():
    """m^t = lambda m^(t-1) + s from m^0 = 0 is s (1 + lambda + ... + lambda^(t-1))."""
    rate, step = 0.85, 2.0
    acg = Server(FedACG(FedACGParams(momentum=rate)), [0.0])
    for number in range(1, 8):
        start = float(acg.sent(number)["w"])
        acg.advance(number, updates([start + step]))
        expected = step * (1 - rate**number) / (1 - rate)
        assert float(acg.state["momentum/w"]) == pytest.approx(expected, rel=1e-5)


# --- FedDyn ---------------------------------------------------------------------------------


def test_dyn_first_round_is_one_plus_p_over_k_mean_steps():
    """From 1 to 2 and 5: mean 3.5, s = 1 + 4 = 5, K = 10: 3.5 + 5/10 = 1 + (1 + 2/10) * 2.5."""
    dyn = Server(FedDyn(FedDynParams()), [1.0], clients=10)
    got = dyn.advance(1, updates([2.0], [5.0], sizes=[1, 99]))
    assert float(got) == pytest.approx(1 + (1 + 2 / 10) * 2.5)  # plain mean: sizes do not matter


def test_dyn_full_participation_doubles_the_first_step():
    """From 0 to 1, 2, 6: mean 3, and s / K = (1 + 2 + 6) / 3 = 3 on top."""
    dyn = Server(FedDyn(FedDynParams()), [0.0], clients=3)
    assert float(dyn.advance(1, updates([1.0], [2.0], [6.0]))) == pytest.approx(6.0)


def test_dyn_lineage_weights_the_mean_by_samples():
    """The mean is 3/4 * 1 + 1/4 * 5 = 2; s / K = (1 + 5) / 2 = 3 has no weights."""
    dyn = Server(FedDyn(FedDynParams(variant="lineage")), [0.0], clients=2)
    got = dyn.advance(1, updates([1.0], [5.0], sizes=[30, 10]))
    assert float(got) == pytest.approx(0.75 * 1 + 0.25 * 5 + (1 + 5) / 2)


def test_dyn_drift_is_the_mean_of_all_clients_memories():
    """h = (1/K) sum g_k, in the v-form: s = sum over all clients of what each has moved."""
    dyn = Server(FedDyn(FedDynParams()), [0.0], clients=5)
    memories = torch.zeros(5, dtype=torch.float64)
    for number, present in enumerate(([0, 1], [1, 4], [2]), start=1):
        start = float(dyn.model["w"])
        moved = {k: 0.1 * (k + 1) * number for k in present}
        for k, step in moved.items():
            memories[k] += step
        dyn.advance(number, updates(*[[start + moved[k]] for k in present]))
        assert float(dyn.state["drift/w"]) == pytest.approx(float(memories.sum()), abs=1e-5)


def test_dyn_alpha_zero_is_fedavg_and_buffers_are_averaged():
    dyn = Server(FedDyn(FedDynParams(alpha=0.0)), [0.0])
    avg = Server(FedAvg(FedAvgParams()), [0.0])
    replies = updates([1.0], [4.0], sizes=[3, 1], buffers=[2.0, 6.0])
    assert torch.equal(dyn.advance(1, replies), avg.advance(1, replies))
    drifting = Server(FedDyn(FedDynParams()), [0.0])
    drifting.advance(1, updates([1.0], [4.0], buffers=[2.0, 6.0]))
    assert float(drifting.model["b"]) == 4.0


def test_dyn_client_stands_still_at_the_optimum():
    """With g_k = grad f_k, full batches and no weight decay, no gradient is left."""
    from fedadb_app.config import RunConfig
    from fedadb_app.data.batches import LocalData
    from fedadb_app.local_training import Attachment, LocalTask
    from fedadb_app.models.classifier import ModelSpec, build_classifier
    from strategies.feddyn import FedDynTrainer

    images = torch.randint(0, 256, (12, 1, 28, 28), dtype=torch.uint8)
    data = LocalData(images, torch.arange(12), torch.arange(12) % 3, 3, torch.device("cpu"))
    model = build_classifier(ModelSpec("lenet", "batch", (1, 28, 28), 3), 0)
    batch = next(iter(data.epoch(12, torch.Generator().manual_seed(0))))
    loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    names = [n for n, _ in model.named_parameters()]
    mean_examples, alpha = 24.0, 0.5  # official: alpha_k = alpha * 24 / 12 = 1
    state = {n: -g / 1.0 for n, g in zip(names, gradients, strict=True)}
    task = LocalTask(
        0,
        1,
        5,
        0.1,
        RunConfig(local_epochs=3, batch_size=12, weight_decay=0.0),
        data,
        {"feddyn": Attachment(scalars={"mean-examples": mean_examples})},
        dict(state),
    )
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    FedDynTrainer(model, task, FedDynParams(alpha=alpha)).train()
    for name, p in model.named_parameters():
        assert torch.allclose(p, before[name], atol=1e-6), name
        assert torch.allclose(task.state[name], state[name], atol=1e-6)
