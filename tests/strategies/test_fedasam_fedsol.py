"""The two-pass methods: perturbations and what they leave as it was (BASELINES.md 3 and 10)."""

import pytest
import torch

from fedadb_app.config import RunConfig
from fedadb_app.data.batches import LocalData
from fedadb_app.local_training import LocalTask, perturbed
from fedadb_app.models.classifier import ModelSpec, build_classifier
from strategies.fedasam import FedASAMParams, FedASAMTrainer, ascent, scales
from strategies.fedavg import METHOD as FEDAVG
from strategies.fedavg import FedAvgParams
from strategies.fedsol import FedSOLParams, FedSOLTrainer, adaptivity, proximal_loss

SPEC = ModelSpec("lenet", "batch", (1, 28, 28), 4)


@pytest.fixture
def task():
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (48, 1, 28, 28), generator=rng, dtype=torch.uint8)
    labels = torch.arange(48) % 4
    data = LocalData(images, torch.arange(48), labels, 4, torch.device("cpu"))
    config = RunConfig(local_epochs=1, batch_size=16)
    return LocalTask(0, 1, 5, 0.05, config, data)


def batch_of(task):
    return next(iter(task.data.epoch(16, task.generator("batches"))))


def norm(tensors):
    return float(torch.stack([t.norm() for t in tensors]).norm())


def gradients(model, batch):
    loss = torch.nn.functional.cross_entropy(model(batch.images), batch.labels)
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_ascent_has_length_rho_in_its_own_metric(task):
    model = build_classifier(SPEC, 0)
    g = gradients(model, batch_of(task))
    ones = [torch.ones_like(x) for x in g]
    assert norm(ascent(g, ones, 0.7)) == pytest.approx(0.7, abs=1e-6)  # SAM
    scale = scales(model, FedASAMParams())
    epsilon = ascent(g, scale, 0.7)
    unscaled = [e / t for e, t in zip(epsilon, scale, strict=True)]
    assert norm(unscaled) == pytest.approx(0.7, abs=1e-5)  # ||T^-1 eps|| = rho


def test_scales_add_eta_to_weights_and_leave_biases_alone():
    model = build_classifier(SPEC, 0)
    for (name, p), t in zip(model.named_parameters(), scales(model, FedASAMParams()), strict=True):
        expected = p.abs() + 0.2 if "weight" in name else torch.ones(())
        assert torch.equal(t, expected)
    lineage = scales(model, FedASAMParams(scaled="all", eta=0.0))
    for p, t in zip(model.parameters(), lineage, strict=True):
        assert torch.equal(t, p.abs())


def test_asam_takes_the_gradient_at_the_perturbed_point(task):
    model = build_classifier(SPEC, 0)
    batch = batch_of(task)
    trainer = FedASAMTrainer(model, task, FedASAMParams())
    before = [p.detach().clone() for p in model.parameters()]
    trainer.begin()
    trainer.backward(batch)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))

    twin = build_classifier(SPEC, 0)
    epsilon = ascent(gradients(twin, batch), scales(twin, FedASAMParams()), 0.7)
    with torch.no_grad():
        for p, e in zip(twin.parameters(), epsilon, strict=True):
            p.add_(e)
    for p, g in zip(model.parameters(), gradients(twin, batch), strict=True):
        assert torch.allclose(p.grad, g, atol=1e-7)


def test_perturbed_restores_bitwise_even_after_an_error():
    p = torch.nn.Parameter(torch.randn(1000) * 1e-3)
    before = p.detach().clone()

    def fails_inside():
        with perturbed([p], [torch.full((1000,), 1e4)]):
            assert float(p.detach().min()) > 9e3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails_inside()
    assert torch.equal(p, before)


@pytest.mark.parametrize(
    ("trainer", "params"),
    [(FedASAMTrainer, FedASAMParams()), (FedSOLTrainer, FedSOLParams(variant="fixed"))],
)
def test_running_statistics_see_each_batch_once(task, trainer, params):
    spec = ModelSpec("resnet8", "batch", (1, 28, 28), 4)
    counts = []
    for cls, p in ((trainer, params), (FEDAVG.trainer, FedAvgParams())):
        model = build_classifier(spec, 0)
        model.train()
        run = cls(model, task, p)
        run.begin()
        run.backward(batch_of(task))
        counts.append({n: b.clone() for n, b in model.named_buffers()})
    for name, buffer in counts[0].items():
        assert torch.allclose(buffer, counts[1][name], atol=1e-6), name


def moved(task, params):
    """A FedSOL trainer whose model has left the global one."""
    model = build_classifier(SPEC, 0)
    trainer = FedSOLTrainer(model, task, params)
    trainer.begin()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(7)))
    return trainer


def test_fixed_perturbation_has_length_rho_and_climbs_the_proximal_loss(task):
    trainer = moved(task, FedSOLParams(variant="fixed", rho=0.3))
    batch = batch_of(task)
    epsilon = trainer.perturbation(batch)
    assert norm(epsilon) == pytest.approx(0.3, abs=1e-6)
    teacher = trainer.teacher(batch.images).detach()
    gamma = proximal_loss(trainer.model(batch.images), teacher)
    u = torch.autograd.grad(gamma, list(trainer.model.parameters()))
    product = sum(float((e * g).sum()) for e, g in zip(epsilon, u, strict=True))
    assert product == pytest.approx(0.3 * norm(u), rel=1e-5)


@pytest.mark.parametrize("variant", ["adaptive", "fixed"])
def test_nothing_is_perturbed_where_student_and_teacher_agree(task, variant):
    model = build_classifier(SPEC, 0)
    trainer = FedSOLTrainer(model, task, FedSOLParams(variant=variant))
    trainer.begin()
    assert norm(trainer.perturbation(batch_of(task))) == 0.0


def test_only_the_wanted_part_is_perturbed(task):
    trainer = moved(task, FedSOLParams(perturb_head=False))
    epsilon = dict(
        zip(
            (n for n, _ in trainer.model.named_parameters()),
            trainer.perturbation(batch_of(task)),
            strict=True,
        )
    )
    assert all(float(e.abs().sum()) == 0 for n, e in epsilon.items() if n.startswith("heads."))
    assert all(float(e.abs().sum()) > 0 for n, e in epsilon.items() if n.endswith("0.weight"))


@pytest.mark.parametrize("part", ["head", "body"])
@pytest.mark.parametrize("variant", ["adaptive", "fixed"])
def test_the_norm_is_that_of_the_perturbed_part(task, part, variant):
    """Only the part's own slices of u = grad Gamma count: eps = rho Lambda u / ||u||."""
    keep = {"perturb_head": part == "head", "perturb_body": part == "body"}
    trainer = moved(task, FedSOLParams(variant=variant, rho=0.3, **keep))
    batch, model = batch_of(task), trainer.model
    gamma = proximal_loss(model(batch.images), trainer.teacher(batch.images).detach())
    slopes = torch.autograd.grad(gamma, list(model.parameters()))
    names = [n for n, _ in model.named_parameters()]
    u = {
        n: g
        for n, g in zip(names, slopes, strict=True)
        if n.startswith("heads.") == (part == "head")
    }
    assert norm(list(u.values())) < 0.99 * norm(slopes)
    found = dict(zip(names, trainer.perturbation(batch), strict=True))
    references = dict(trainer.teacher.named_parameters())
    for name, p in model.named_parameters():
        if name not in u:
            assert not found[name].any()
            continue
        scale = adaptivity(p.detach(), references[name]) if variant == "adaptive" else 1.0
        torch.testing.assert_close(found[name], 0.3 * scale * u[name] / norm(list(u.values())))


def test_adaptivity_normalises_along_the_output_axis():
    reference = torch.zeros(3, 2)
    weight = torch.tensor([[3.0, 0.0], [-4.0, 0.0], [0.0, 0.0]])
    expected = torch.tensor([[0.6, 0.0], [0.8, 0.0], [0.0, 0.0]])
    assert torch.allclose(adaptivity(weight, reference), expected)
    vector = adaptivity(torch.tensor([1.0, -2.0, 2.0]), torch.zeros(3))
    assert torch.allclose(vector, torch.tensor([1.0, 2.0, 2.0]) / 3)


def test_proximal_loss_is_kl_at_temperature_three():
    z, g = torch.randn(5, 4), torch.randn(5, 4)
    q, p = (g / 3).softmax(1), (z / 3).softmax(1)
    expected = float((q * (q / p).log()).sum(1).mean())
    assert float(proximal_loss(z, g)) == pytest.approx(expected, abs=1e-6)
