"""Class anchor generation, equations 3-5 of the FedADB paper (section 4.2).

The server knows the global model: a feature extractor phi with parameters theta_phi and the AGB
classifier psi_A with parameters theta_A. It makes N = C * M anchors, M for each class c_i:

    start     x_i^(0) ~ N(0, sigma^2 I), projected onto X
    (eq. 3)   L_ach(x_i; c_i) = -log [psi_A(phi(x_i))]_{c_i} + lambda * ||x_i||_2^2
    (eq. 4)   x_i^(j+1) = Pi_X( x_i^(j) - eta * grad L_ach(x_i^(j); c_i) ),   j = 0 ... I-1
    (eq. 5)   tau_t = (1/N) * sum_i [psi_A(phi(x_i^(I)))]_{c_i}

where psi_A ends in a softmax (here: the evaluated head's logits, softmaxed). In this module:

    ==========  ===========================  ================================================
    symbol      name                         key of the run configuration
    ==========  ===========================  ================================================
    x_i         ``images``                   –
    c_i         ``labels``                   –
    M           ``per_class``                ``fedadb.anchors-per-class``
    I           ``steps``                    ``fedadb.anchor-steps``
    eta         ``learning_rate``            ``fedadb.anchor-learning-rate``
    lambda      ``l2``                       ``fedadb.anchor-l2``
    sigma       ``noise``                    ``fedadb.anchor-noise``
    X, Pi_X     ``valid_range``, ``clamp_``  – the box of valid pixels in normalised space
    y_i (tilde) ``confidences``              –
    tau_t       ``quality``                  –
    ==========  ===========================  ================================================

The loss is summed over the anchors, so each takes its own gradient step whatever C is. All anchors
of a round form one batch, and tau_t is computed on that batch: with batch statistics
(``norm="batch-local"``) confidence is a property of the batch (docs/decisions.md, 6).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedadb_app.data.arrays import ImageSchema
from fedadb_app.errors import TrainingError
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.randomness import torch_generator


@dataclass(frozen=True)
class AnchorSettings:
    """How anchors are generated; see the table above for ranges and symbols."""

    per_class: int = 1
    steps: int = 100
    learning_rate: float = 1.0
    l2: float = 1e-4
    noise: float = 1.0


@dataclass(frozen=True)
class ClassAnchors:
    """The anchor set of a round, {(x_i, y_i, tau_t)}.

    Attributes
    ----------
    images : torch.Tensor
        float32 model inputs, ``(N, channels, height, width)``, inside the valid range.
    labels : torch.Tensor
        Target classes c_i, int64 ``(N,)``.
    confidences : torch.Tensor
        Softmax probability of the target class, float32 ``(N,)``.
    quality : float
        tau_t, in (0, 1].
    """

    images: Tensor
    labels: Tensor
    confidences: Tensor
    quality: float


def anchors_of_round(
    model: ImageClassifier,
    schema: ImageSchema,
    valid_range: tuple[Tensor, Tensor],
    settings: AnchorSettings,
    seed: int,
    server_round: int,
) -> ClassAnchors:
    """Make the anchors that are sent in a round.

    Their start is drawn from (seed, round): whoever has the model that the round begins with makes
    the same anchors.

    Parameters
    ----------
    model : ImageClassifier
        theta^(t-1), the global model after the round before.
    schema : ImageSchema
        Classes, and the shape of an input.
    valid_range, settings
        As for `generate_anchors`.
    seed : int
        The run's.
    server_round : int
        t, 1-based.
    """
    generator = torch_generator(seed, "anchors", server_round)
    return generate_anchors(
        model, schema.num_classes, schema.image_shape, valid_range, settings, generator
    )


def generate_anchors(
    model: ImageClassifier,
    num_classes: int,
    image_shape: tuple[int, int, int],
    valid_range: tuple[Tensor, Tensor],
    settings: AnchorSettings,
    generator: torch.Generator,
) -> ClassAnchors:
    """Optimise one batch of class anchors on the global model, which stays bitwise unchanged.

    Parameters
    ----------
    model : ImageClassifier
        The global model; its evaluated head is the AGB classifier.
    num_classes : int
        C.
    image_shape : tuple[int, int, int]
        Channels, height, width.
    valid_range : tuple[torch.Tensor, torch.Tensor]
        Least and greatest model input, per channel: ``Preparation.valid_range``.
    settings : AnchorSettings
        Equation 3-4's constants.
    generator : torch.Generator
        A CPU generator, made from (seed, round), for the Gaussian start.

    Returns
    -------
    ClassAnchors
        On the model's device.

    Raises
    ------
    TrainingError
        If an anchor becomes infinite or not a number.
    """
    device = next(model.parameters()).device
    labels = torch.arange(num_classes, device=device).repeat_interleave(settings.per_class)
    start = torch.randn(len(labels), *image_shape, generator=generator) * settings.noise
    low, high = (bound.to(device) for bound in valid_range)
    images = start.to(device).clamp_(low, high)

    # Evaluation mode keeps running statistics and dropout out of it; no gradient flows to (or is
    # stored on) the parameters, because only the images ask for one.
    modules = list(model.modules())
    modes = [module.training for module in modules]
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    model.eval().requires_grad_(False)
    try:
        for _ in range(settings.steps):
            images.requires_grad_(True)
            # equation 3, summed over i; the gradient of lambda * ||x||^2 is known: 2 lambda x
            loss = F.cross_entropy(model(images), labels, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, images)
            images = images.detach()
            gradient = gradient + 2 * settings.l2 * images
            # equation 4
            images = (images - settings.learning_rate * gradient).clamp_(low, high)
        with torch.no_grad():
            probabilities = model(images).softmax(dim=1)
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for parameter, flag in zip(model.parameters(), wanted, strict=True):
            parameter.requires_grad_(flag)

    confidences = probabilities.gather(1, labels[:, None])[:, 0]
    quality = float(confidences.cpu().double().mean())  # equation 5
    if not (torch.isfinite(images).all() and torch.isfinite(confidences).all()):
        raise TrainingError(
            "class anchor generation gave a value that is not finite; lower "
            f"fedadb.anchor-learning-rate (now {settings.learning_rate:g}), or learning-rate if "
            "the global model itself has diverged"
        )
    return ClassAnchors(images, labels, confidences, quality)
