"""Dual-branch training against equations 6-8, written out sample by sample."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedadb_app.anchors import ClassAnchors
from fedadb_app.data.batches import LocalData
from fedadb_app.dual_branch import (
    BalancedSampler,
    MixedPool,
    dual_branch_loss,
    dynamic_beta,
    missing_class_rate,
)
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier

CLASSES = 5
SHAPE = (1, 16, 16)
LABELS = [3, 0, 0, 1, 0, 3, 0, 0, 1, 0]  # classes 2 and 4 are missing
CPU = torch.device("cpu")


def local_data(
    labels: list[int] = LABELS,
    shape: tuple[int, int, int] = SHAPE,
    flip: bool = False,
    classes: int = CLASSES,
) -> LocalData:
    """A client that holds every second row of a shared array."""
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (2 * len(labels), *shape), dtype=np.uint8)
    everyone = np.repeat(np.array(labels, np.int64), 2)
    positions = np.arange(len(labels), dtype=np.int64) * 2 + 1
    return LocalData.from_arrays(images, everyone, positions, classes, CPU, flip)


def class_anchors(shape: tuple[int, int, int] = SHAPE, confidence: float | None = None):
    generator = torch.Generator().manual_seed(11)
    images = torch.rand(CLASSES, *shape, generator=generator) * 2 - 1
    confidences = torch.tensor([0.9, 0.35, 0.8, 0.6, 1.0])
    if confidence is not None:
        confidences = torch.full((CLASSES,), confidence)
    return ClassAnchors(images, torch.arange(CLASSES), confidences, float(confidences.mean()))


def two_heads(size: int, spec: ModelSpec) -> dict[str, nn.Module]:
    return {name: nn.Linear(size, spec.num_classes) for name in ("agb", "lcb")}


SPEC = ModelSpec("lenet", "batch", SHAPE, CLASSES)


def lenet() -> ImageClassifier:
    return build_classifier(SPEC, 3, two_heads)


def small_net(norm: nn.Module) -> ImageClassifier:
    torch.manual_seed(0)
    features = nn.Sequential(
        nn.Conv2d(1, 4, 5, stride=3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU()
    )
    return ImageClassifier(features, two_heads(8, SPEC))


def batches() -> tuple[Tensor, Tensor]:
    """B_k^A with repeated local samples and anchors (from 10 on), and a local batch."""
    return torch.tensor([0, 12, 12, 3, 14, 0, 12]), torch.tensor([7, 0, 3, 9, 1, 2, 4])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients(model: ImageClassifier, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


# --- gamma and beta -------------------------------------------------------------------------


def test_missing_class_rate_by_hand():
    assert missing_class_rate(torch.tensor([3, 0, 1, 0])) == 0.5
    assert missing_class_rate(torch.tensor([1, 1, 1])) == 0
    assert missing_class_rate(torch.tensor([0] * 9 + [70])) == pytest.approx(0.9)
    assert missing_class_rate(local_data().class_counts) == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("t", "total", "gamma", "tau", "expected"),
    [
        (5, 20, 0.5, 0.8, 2**-0.8),
        (1, 100, 0.9, 0.9, 10**-1.62),
        (10, 40, 0.5, 1.0, 0.5),
        (1, 16, 0.75, 1.0, 0.125),
        (1, 1, 0.9, 0.7, 1.0),
    ],
)
def test_beta_by_hand(t, total, gamma, tau, expected):
    assert dynamic_beta(t, total, gamma, tau) == pytest.approx(expected, rel=1e-12)


rounds = st.integers(1, 1000).flatmap(
    lambda total: st.tuples(st.integers(1, total), st.just(total))
)
unit = st.floats(0, 1)


@given(rounds, unit, unit)
def test_beta_lies_between_nothing_and_one(t_and_total, gamma, tau):
    assert 0 < dynamic_beta(*t_and_total, gamma, tau) <= 1


@given(rounds, unit)
def test_a_client_with_every_class_or_the_last_round_has_beta_one(t_and_total, x):
    _, total = t_and_total
    assert dynamic_beta(*t_and_total, 0.0, x) == 1
    assert dynamic_beta(*t_and_total, x, 0.0) == 1
    assert dynamic_beta(total, total, x, x) == 1


@given(rounds, unit, unit, unit)
def test_beta_does_not_grow_with_gamma_or_tau_nor_shrink_with_rounds(t_and_total, low, high, x):
    low, high = sorted((low, high))
    t, total = t_and_total
    assert dynamic_beta(t, total, high, x) <= dynamic_beta(t, total, low, x)
    assert dynamic_beta(t, total, x, high) <= dynamic_beta(t, total, x, low)
    assert dynamic_beta(t, total, low, x) <= dynamic_beta(min(t + 1, total), total, low, x)


# --- the balanced sampler -------------------------------------------------------------------


def within_4_sigma(count: int, draws: int, probability: float) -> bool:
    sigma = math.sqrt(draws * probability * (1 - probability))
    return abs(count - draws * probability) <= 4 * sigma


def test_with_anchors_every_class_is_drawn_alike_and_every_element_within_it():
    local = [0] * 40 + [3] * 2 + [1] * 5
    order = torch.randperm(47, generator=generator(1))
    labels = torch.cat([torch.tensor(local)[order], torch.arange(CLASSES)])
    draws = 50_000
    drawn = BalancedSampler(labels, generator()).draw(draws)

    counts = torch.bincount(drawn, minlength=len(labels))
    assert len(counts) == len(labels)
    sizes = torch.bincount(labels)
    for c in range(CLASSES):
        assert within_4_sigma(int(counts[labels == c].sum()), draws, 1 / CLASSES)
    for i, c in enumerate(labels.tolist()):
        # e.g. the anchor of a class with n local samples gets 1/(n+1) of the class's draws
        assert within_4_sigma(int(counts[i]), draws, 1 / CLASSES / int(sizes[c]))


def test_without_anchors_only_present_classes_are_drawn_alike():
    labels = torch.tensor(LABELS)
    draws = 30_000
    drawn = BalancedSampler(labels, generator()).draw(draws)
    counts = torch.bincount(labels[drawn], minlength=CLASSES).tolist()
    assert counts[2] == counts[4] == 0
    assert all(within_4_sigma(counts[c], draws, 1 / 3) for c in (0, 1, 3))


def test_a_single_sample_is_drawn_every_time():
    assert BalancedSampler(torch.tensor([4]), generator()).draw(9).tolist() == [0] * 9


def test_draws_go_on_and_repeat_with_the_generator():
    labels = torch.tensor(LABELS)
    sampler, twin = (BalancedSampler(labels, generator(8)) for _ in range(2))
    first, second = sampler.draw(64), sampler.draw(64)
    assert not torch.equal(first, second)
    assert torch.equal(twin.draw(64), first)
    assert torch.equal(twin.draw(64), second)


# --- the pool -------------------------------------------------------------------------------


def pixels(pool: MixedPool, position: int) -> Tensor:
    """The model input at a position, from the raw bytes."""
    local = pool.local
    if position >= len(local):
        return pool.anchor_images[position - len(local)]
    return (local.images[local.positions[position]].float() / 255 - 0.5) / 0.5


def test_the_pool_is_the_clients_samples_then_the_anchors():
    pool = MixedPool.of(local_data(), class_anchors(), "hard")
    assert pool.labels.tolist() == [*LABELS, 0, 1, 2, 3, 4]
    positions = torch.tensor([12, 0, 9, 10, 14, 12, 5])
    expected = torch.stack([pixels(pool, int(i)) for i in positions])
    torch.testing.assert_close(pool.load(positions, generator()), expected, atol=1e-6, rtol=0)


def test_without_anchors_the_pool_is_the_clients_samples():
    pool = MixedPool.of(local_data(), None, "soft")
    assert pool.labels.tolist() == LABELS
    assert pool.targets.tolist() == LABELS
    assert pool.weights.tolist() == [1.0] * len(LABELS)
    positions = torch.tensor([3, 3, 9])
    expected = torch.stack([pixels(pool, int(i)) for i in positions])
    torch.testing.assert_close(pool.load(positions, generator()), expected, atol=1e-6, rtol=0)


def test_local_samples_are_flipped_and_anchors_never():
    pool = MixedPool.of(local_data(flip=True), class_anchors(), "hard")
    found = pool.load(torch.tensor([2, 11] * 32), generator())
    local, anchors = found[0::2], found[1::2]
    plain = pixels(pool, 2)
    as_is = torch.tensor([torch.allclose(x, plain, atol=1e-6) for x in local])
    mirrored = torch.tensor([torch.allclose(x, plain.flip(-1), atol=1e-6) for x in local])

    assert (anchors == pool.anchor_images[1]).all()
    assert (as_is ^ mirrored).all()
    assert within_4_sigma(int(mirrored.sum()), 32, 0.5)


# --- equation 8, against the plain two-forward twin -----------------------------------------


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(0)).sum()


def plain_loss(
    model: ImageClassifier,
    pool: MixedPool,
    anchors: ClassAnchors | None,
    agb: Tensor,
    lcb: Tensor,
    beta: float | None,
    anchor_label: str,
) -> Tensor:
    """Equations 6-8: one forward for each branch's batch as drawn, then sample by sample."""
    n = len(pool.local)
    logits = model.heads["agb"](model.features(torch.stack([pixels(pool, int(i)) for i in agb])))
    loss = torch.zeros(())
    for z, i in zip(logits, agb.tolist(), strict=True):
        target, factor = torch.zeros(CLASSES), 1.0
        if i < n:
            target[pool.local.labels[i]] = 1
        else:
            c, y = int(anchors.labels[i - n]), float(anchors.confidences[i - n])
            target[c] = 1
            if anchor_label == "soft":
                target[:] = (1 - y) / (CLASSES - 1)
                target[c] = y
            if anchor_label == "weighted":
                factor = y
        loss = loss + factor * cross_entropy(z, target) / len(agb)
    if beta is None:
        return loss
    logits = model.heads["lcb"](model.features(torch.stack([pixels(pool, int(i)) for i in lcb])))
    for z, i in zip(logits, lcb.tolist(), strict=True):
        target = torch.zeros(CLASSES)
        target[pool.local.labels[i]] = 1
        loss = loss + beta * cross_entropy(z, target) / len(lcb)
    return loss


@pytest.mark.parametrize("beta", [None, 0.0, 0.37, 1.0])
@pytest.mark.parametrize("anchor_label", ["hard", "soft", "weighted"])
@pytest.mark.parametrize("make", [lenet, lambda: small_net(nn.GroupNorm(2, 4))])
def test_the_shared_pass_equals_two_plain_passes(make, anchor_label, beta):
    model, anchors = make(), class_anchors()
    pool = MixedPool.of(local_data(), anchors, anchor_label)
    agb, lcb = batches()
    found = dual_branch_loss(model, pool, agb, lcb, beta, generator())
    expected = plain_loss(model, pool, anchors, agb, lcb, beta, anchor_label)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)

    mine, plain = gradients(model, found), gradients(model, expected)
    for name, gradient in plain.items():
        torch.testing.assert_close(mine[name], gradient, atol=1e-6, rtol=0, msg=name)
    assert max(float(g.abs().max()) for g in plain.values()) > 1e-2


def test_the_shared_pass_without_anchors():
    model, pool = lenet(), MixedPool.of(local_data(), None, "hard")
    agb, lcb = torch.tensor([0, 3, 3, 8]), torch.tensor([9, 0, 4, 3])
    found = dual_branch_loss(model, pool, agb, lcb, 0.5, generator())
    expected = plain_loss(model, pool, None, agb, lcb, 0.5, "hard")
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)
    mine, plain = gradients(model, found), gradients(model, expected)
    for name, gradient in plain.items():
        torch.testing.assert_close(mine[name], gradient, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("beta", [None, 0.5])
def test_with_running_statistics_each_branch_passes_its_own_batch(beta):
    twin, model = small_net(nn.BatchNorm2d(4)), small_net(nn.BatchNorm2d(4))
    anchors = class_anchors()
    pool = MixedPool.of(local_data(), anchors, "hard")
    found = dual_branch_loss(model, pool, *batches(), beta, generator())
    expected = plain_loss(twin, pool, anchors, *batches(), beta, "hard")
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)

    mine, plain = gradients(model, found), gradients(twin, expected)
    for name, gradient in plain.items():
        torch.testing.assert_close(mine[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    layer, plain_layer = model.features[1], twin.features[1]
    assert int(layer.num_batches_tracked) == (1 if beta is None else 2)
    torch.testing.assert_close(layer.running_mean, plain_layer.running_mean, atol=1e-7, rtol=0)
    torch.testing.assert_close(layer.running_var, plain_layer.running_var, atol=1e-7, rtol=0)


@pytest.mark.parametrize("anchor_label", ["hard", "soft", "weighted"])
def test_with_batch_local_statistics_each_branch_passes_its_own_batch(anchor_label):
    model = small_net(nn.BatchNorm2d(4, track_running_stats=False))
    anchors = class_anchors()
    pool = MixedPool.of(local_data(), anchors, anchor_label)
    found = dual_branch_loss(model, pool, *batches(), 0.5, generator())
    expected = plain_loss(model, pool, anchors, *batches(), 0.5, anchor_label)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_with_augmentation_every_draw_is_flipped_on_its_own():
    model = small_net(nn.Identity())
    pool = MixedPool.of(local_data(flip=True), class_anchors(), "hard")
    seen: list[Tensor] = []
    model.features.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    dual_branch_loss(
        model, pool, torch.tensor([2, 11] * 16), torch.tensor([2] * 32), 0.5, generator()
    )
    drawn = torch.cat([seen[0][0::2], seen[1]])
    plain = pixels(pool, 2)
    mirrored = [torch.allclose(x, plain.flip(-1), atol=1e-6) for x in drawn]
    assert [len(x) for x in seen] == [32, 32]
    assert within_4_sigma(sum(mirrored), 48, 0.5)
    assert (seen[0][1::2] == pool.anchor_images[1]).all()


# --- what an anchor's label is --------------------------------------------------------------


def identity_model() -> ImageClassifier:
    """Three pixels are the three logits of both heads."""
    heads = {}
    for name in ("agb", "lcb"):
        heads[name] = nn.Linear(3, 3, bias=False)
        heads[name].weight.data = torch.eye(3)
    return ImageClassifier(nn.Flatten(), heads)


@pytest.mark.parametrize(
    ("anchor_label", "confidence", "anchor_loss"),
    [
        # logits (1, 0, -1), class 0: log(e + 1 + 1/e) = 1.4076060, so H = 0.4076060
        ("hard", 0.8, 0.4076060),
        ("weighted", 0.8, 0.8 * 0.4076060),
        ("soft", 0.8, 0.8 * 0.4076060 + 0.1 * 1.4076060 + 0.1 * 2.4076060),
        ("weighted", 1.0, 0.4076060),
        ("soft", 1.0, 0.4076060),
    ],
)
def test_anchor_label_by_hand(anchor_label, confidence, anchor_loss):
    # the client's one sample: pixels (255, 0, 0) are logits (1, -1, -1); class 1: 2.2395448
    image = np.array([255, 0, 0], np.uint8).reshape(1, 3, 1, 1)
    local = LocalData.from_arrays(image, np.array([1]), np.array([0]), 3, CPU)
    anchors = ClassAnchors(
        torch.tensor([1.0, 0.0, -1.0]).reshape(1, 3, 1, 1),
        torch.tensor([0]),
        torch.tensor([confidence]),
        confidence,
    )
    pool = MixedPool.of(local, anchors, anchor_label)
    agb, lcb = torch.tensor([1, 0, 1, 1]), torch.tensor([0, 0, 0, 0])
    local_loss = math.log(math.e + 2 / math.e) + 1
    expected = (3 * anchor_loss + local_loss) / 4 + 0.25 * local_loss
    found = dual_branch_loss(identity_model(), pool, agb, lcb, 0.25, generator())
    assert found.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("anchor_label", ["soft", "weighted"])
def test_labels_coincide_at_full_confidence_only(anchor_label):
    model = lenet()
    for confidence, alike in ((1.0, True), (0.7, False)):
        anchors = class_anchors(confidence=confidence)
        losses = [
            dual_branch_loss(
                model, MixedPool.of(local_data(), anchors, kind), *batches(), 0.5, generator()
            )
            for kind in ("hard", anchor_label)
        ]
        hard, other = (gradients(model, loss) for loss in losses)
        assert ((losses[0] - losses[1]).abs().item() < 1e-6) is alike
        same = all(torch.allclose(hard[k], other[k], atol=1e-6, rtol=0) for k in hard)
        assert same is alike


# --- the branches do not touch each other's head --------------------------------------------


def test_agb_has_no_gradient_on_the_lcb_head():
    model = lenet()
    pool = MixedPool.of(local_data(), class_anchors(), "hard")
    dual_branch_loss(model, pool, *batches(), None, generator()).backward()
    assert all(p.grad is None for p in model.heads["lcb"].parameters())
    assert all(p.grad.abs().max() > 0 for p in model.heads["agb"].parameters())

    found = gradients(model, dual_branch_loss(model, pool, *batches(), 0.0, generator()))
    assert not any(g.any() for name, g in found.items() if name.startswith("heads.lcb"))


def test_lcb_has_no_gradient_on_the_agb_head():
    model = lenet()
    pool = MixedPool.of(local_data(), class_anchors(), "hard")

    def at(beta: float) -> dict[str, Tensor]:
        return gradients(model, dual_branch_loss(model, pool, *batches(), beta, generator()))

    none, half, full = at(0.0), at(0.5), at(1.0)
    for name in full:
        lcb_part = full[name] - none[name]
        if name.startswith("heads.agb"):
            assert torch.equal(full[name], none[name])
        else:
            assert lcb_part.abs().max() > 1e-4  # the LCB reaches its own head and the features
        torch.testing.assert_close(
            half[name] - none[name], 0.5 * lcb_part, atol=1e-6, rtol=0, msg=name
        )


def test_the_lcb_sees_neither_anchors_nor_their_labels():
    model = lenet()
    agb, lcb = batches()
    found = []
    for anchors, label in ((class_anchors(), "weighted"), (class_anchors(confidence=0.2), "soft")):
        pool = MixedPool.of(local_data(), anchors, label)
        loss = dual_branch_loss(model, pool, agb.roll(2), lcb, 1.0, generator())
        found.append(gradients(model, loss))
    for name in ("heads.lcb.weight", "heads.lcb.bias"):
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-7, rtol=0)


def test_the_lcb_head_is_not_evaluated():
    model, images = lenet(), torch.rand(3, *SHAPE)
    with torch.no_grad():
        before = model(images)
        for parameter in model.heads["lcb"].parameters():
            parameter.add_(1.0)
        assert torch.equal(model(images), before)
        for parameter in model.heads["agb"].parameters():
            parameter.add_(1.0)
        assert not torch.equal(model(images), before)


def test_the_loss_is_not_rounded_to_bfloat16():
    """Under autocast the forward pass is bfloat16; a sum of 7 losses must not be."""
    model = small_net(nn.Identity())
    pool = MixedPool.of(local_data(), class_anchors(), "hard")
    with torch.autocast("cpu", torch.bfloat16):
        loss = dual_branch_loss(model, pool, *batches(), 0.5, generator())
    assert loss.dtype == torch.float32
    assert loss.item() != loss.bfloat16().item()
