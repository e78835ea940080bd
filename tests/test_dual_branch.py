"""The two-branch loss against equations 6-8, written out sample by sample."""

import math

import numpy as np
import pytest
import torch
from dual_branch_cases import (
    CLASSES,
    CPU,
    SHAPE,
    class_anchors,
    generator,
    local_data,
    pixels,
    within_4_sigma,
)
from torch import Tensor, nn

from fedadb_app.anchors import ClassAnchors
from fedadb_app.data.batches import LocalData
from fedadb_app.dual_branch import (
    MixedPool,
    dual_branch_loss,
)
from fedadb_app.models.classifier import ImageClassifier, ModelSpec, build_classifier


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


def gradients(model: ImageClassifier, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


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
