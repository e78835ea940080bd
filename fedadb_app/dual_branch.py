"""Dual-branch collaborative training, equations 6-8 of the FedADB paper (section 4.3).

One feature extractor phi carries two heads: psi_A of the anchor-guided global branch (AGB) and
psi_L of the local calibration branch (LCB), f_A = psi_A(phi(x)), f_L = psi_L(phi(x)). Client k
holds D_k with the classes C_k; H is the cross-entropy; A_t are the round's anchors.

    (eq. 6)   L_AGB = E_{(x,y) ~ B_k^A} H(y, f_A(x)),  B_k^A a class-balanced batch of D_k and A_t
    (eq. 7)   L_LCB = E_{(x,y) ~ D_k} H(y, f_L(x))
    (beta)    beta_k(r) = r^(gamma_k * tau_t),  r = t/T,  gamma_k = 1 - |C_k| / |C|
    (eq. 8)   L_total = L_AGB + beta_k * L_LCB

In this module: `MixedPool` is D_k with A_t, B_k^A is what `BalancedSampler` draws from it, gamma_k
is `missing_class_rate`, beta_k is `dynamic_beta`, and equation 8 is `dual_branch_loss`, whose two
terms are equations 6 and 7. gamma_k and beta_k are computed on the client and never leave it.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.anchors import ClassAnchors
from fedadb_app.data.batches import LocalData
from fedadb_app.models.classifier import ImageClassifier

AnchorLabel = Literal["hard", "soft", "weighted"]


def missing_class_rate(class_counts: Tensor) -> float:
    """Return gamma_k = 1 - |C_k|/|C| from a client's samples per class, ``(C,)``."""
    return 1.0 - int((class_counts > 0).sum()) / len(class_counts)


def dynamic_beta(
    server_round: int, num_rounds: int, missing_rate: float, anchor_quality: float
) -> float:
    """Return beta_k(r) = r^(gamma_k * tau_t), in (0, 1].

    Parameters
    ----------
    server_round, num_rounds : int
        t (1-based) and T; r = t/T lies in [1/T, 1], and is 1 in rounds after T.
    missing_rate : float
        gamma_k in [0, 1).
    anchor_quality : float
        tau_t in [0, 1].
    """
    progress = min(1.0, server_round / num_rounds)
    return float(progress ** (missing_rate * anchor_quality))


class BalancedSampler:
    """Draws a class uniformly, then one of its elements uniformly, with replacement.

    Parameters
    ----------
    labels : torch.Tensor
        Labels of the pool (local samples, then anchors), int64 on the CPU. Only classes that occur
        are drawn: all C with anchors, the client's own C_k without.
    generator : torch.Generator
        A CPU generator.
    """

    def __init__(self, labels: Tensor, generator: torch.Generator) -> None:
        self._by_class = torch.argsort(labels, stable=True)
        _, self._counts = torch.unique(labels, return_counts=True)  # sorted, as _by_class is
        self._starts = torch.cumsum(self._counts, 0) - self._counts
        self._generator = generator

    def draw(self, size: int) -> Tensor:
        """Return `size` positions in the pool."""
        chosen = torch.randint(len(self._counts), (size,), generator=self._generator)
        counts = self._counts[chosen]
        # double precision: a float32 fraction times a large count could round up to the count
        fraction = torch.rand(size, generator=self._generator, dtype=torch.float64)
        return self._by_class[self._starts[chosen] + (fraction * counts).long()]


@dataclass(frozen=True)
class MixedPool:
    """What the AGB samples from: the client's samples, then the round's anchors (if any).

    Attributes
    ----------
    local : LocalData
        D_k, at positions 0 ... n_k - 1.
    anchor_images : torch.Tensor
        A_t, at positions n_k ... n_k + N - 1; ``(N, channels, height, width)``, N may be 0.
    labels : torch.Tensor
        Class of each element, int64 ``(n_k + N,)``.
    targets : torch.Tensor
        What the AGB's cross-entropy is taken against: `labels`, or probabilities ``(n_k + N, C)``.
    weights : torch.Tensor
        Factor of each element's cross-entropy, float32 ``(n_k + N,)``; 1 for local samples.
    """

    local: LocalData
    anchor_images: Tensor
    labels: Tensor
    targets: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, local: LocalData, anchors: ClassAnchors | None, anchor_label: AnchorLabel
    ) -> "MixedPool":
        """Join a client's samples and anchors.

        `anchor_label` says what an anchor (x, y, c) is taken to be: ``hard`` the class c;
        ``soft`` probability y on c and the rest spread evenly; ``weighted`` class c with its
        cross-entropy multiplied by y.
        """
        device = local.device
        if anchors is None:
            empty = torch.empty(0, *local.images.shape[1:], device=device)
            return cls(
                local, empty, local.labels, local.labels, torch.ones(len(local), device=device)
            )
        labels = torch.cat([local.labels, anchors.labels.to(device)])
        confidence = torch.ones(len(labels), device=device)
        confidence[len(local) :] = anchors.confidences.to(device)
        weights = confidence if anchor_label == "weighted" else torch.ones_like(confidence)
        targets = labels
        if anchor_label == "soft":
            rest = (1 - confidence) / (local.num_classes - 1)
            targets = rest[:, None].repeat(1, local.num_classes)
            targets[torch.arange(len(labels), device=device), labels] = confidence
        return cls(local, anchors.images.to(device), labels, targets, weights)

    def load(self, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the model inputs at `positions` (CPU, int64), local ones augmented as usual."""
        is_local = positions < len(self.local)
        images = torch.empty(
            len(positions), *self.anchor_images.shape[1:], device=self.local.device
        )
        images[is_local.to(images.device)] = self.local.load(
            positions[is_local], self.local.draw_augmentation(int(is_local.sum()), generator)
        )
        chosen = (positions[~is_local] - len(self.local)).to(images.device)
        images[~is_local.to(images.device)] = self.anchor_images[chosen]
        return images


def dual_branch_loss(
    model: ImageClassifier,
    pool: MixedPool,
    agb: Tensor,
    lcb: Tensor,
    beta: float | None,
    generator: torch.Generator,
) -> Tensor:
    """Return L_AGB + beta * L_LCB (equation 8).

    Parameters
    ----------
    model : ImageClassifier
        With the heads ``agb`` and ``lcb``.
    pool : MixedPool
        Where both batches come from.
    agb, lcb : torch.Tensor
        Positions of B_k^A and of the local batch in the pool, int64 ``(B,)``, on the CPU.
    beta : float or None
        beta_k; None leaves the LCB out.
    generator : torch.Generator
        For the augmentation of local samples.

    Notes
    -----
    Without batch statistics and without augmentation, a sample's features are the same wherever it
    is drawn. Then one forward pass over the distinct samples serves both branches, each sample
    weighted by how often a branch drew it: the same sums in another order. Otherwise each branch
    must see its own batch as drawn, one after the other.
    """
    branches = [("agb", agb)] if beta is None else [("agb", agb), ("lcb", lcb)]
    losses = {}
    if model.has_batch_statistics() or pool.local.augmented:
        for head, drawn in branches:
            rows = drawn.to(pool.labels.device)
            logits = model.heads[head](model.features(pool.load(drawn, generator)))
            losses[head] = _mean_loss(head, logits, pool, rows, pool.weights[rows] / len(rows))
    else:
        distinct, where = torch.unique(torch.cat([d for _, d in branches]), return_inverse=True)
        rows = distinct.to(pool.labels.device)
        features = model.features(pool.load(distinct, generator))
        for (head, drawn), inverse in zip(branches, where.split(len(agb)), strict=True):
            times = torch.bincount(inverse, minlength=len(distinct)).to(rows.device)
            weights = pool.weights[rows] * times / len(drawn)
            losses[head] = _mean_loss(head, model.heads[head](features), pool, rows, weights)
    loss = losses["agb"]
    return loss if beta is None else loss + beta * losses["lcb"]


def _mean_loss(head: str, logits: Tensor, pool: MixedPool, rows: Tensor, weights: Tensor) -> Tensor:
    """Return sum_i w_i H(y_i, logits_i): equation 6 for the AGB's targets, 7 for the LCB's."""
    targets = pool.targets if head == "agb" else pool.labels
    losses = F.cross_entropy(logits, targets[rows], reduction="none")
    return torch.dot(weights, losses)  # `@` would be rounded to bfloat16 under autocast
