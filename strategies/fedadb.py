"""FedADB: Liu et al., "Class Anchor-Driven Dual-Branch Federated Learning", 2026.

Server, before each round: one batch of class anchors on the global model (equations 3-5,
`fedadb_app.anchors`), sent with their mean confidence tau_t. Client k: one extractor with two
heads trained on (equations 6-8, `fedadb_app.dual_branch`)

    L_total = L_AGB + beta_k L_LCB,    beta_k = (t/T)^(gamma_k tau_t)

The server averages everything, both heads included, by samples (equation 1). The AGB head is the
one that anchors are optimised on and that is evaluated. Open choices: docs/decisions.md.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedadb_app.anchors import AnchorSettings, ClassAnchors, anchors_of_round
from fedadb_app.config import Settings
from fedadb_app.data.batches import Batch
from fedadb_app.dual_branch import (
    AnchorLabel,
    BalancedSampler,
    MixedPool,
    dual_branch_loss,
    dynamic_beta,
    missing_class_rate,
)
from fedadb_app.local_training import Attachment, Trainer
from fedadb_app.models.classifier import ModelSpec
from fedadb_app.runs.reader import RunFiles
from fedadb_app.runs.sections import ClassImage, Curves, MethodSection
from fedadb_app.runs.tables import Floats
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.server import Broadcast, RoundInputs, Workbench

_ANCHORS = "anchors"


class FedADBParams(Settings):
    """FedADB's own values; docs/run.md explains each."""

    anchors_per_class: Annotated[int, Field(ge=1, description="M")] = 1
    anchor_steps: Annotated[int, Field(ge=0, description="I of equation 4")] = 100
    anchor_learning_rate: Annotated[
        float, Field(gt=0, description="eta of equation 4, on the summed loss")
    ] = 1.0
    anchor_l2: Annotated[float, Field(ge=0, description="lambda of equation 3")] = 1e-4
    anchor_noise: Annotated[float, Field(ge=0, description="sigma of the Gaussian start")] = 1.0
    anchor_label: Annotated[
        AnchorLabel,
        Field(
            description="what an anchor's label is: `hard` (its class), `soft` (confidence on "
            "the class, the rest spread), `weighted` (its class, loss times confidence)"
        ),
    ] = "hard"
    use_anchors: Annotated[
        bool, Field(description="whether anchors join the AGB's batches (Table 3)")
    ] = True
    use_lcb: Annotated[bool, Field(description="whether there is an LCB (Table 3)")] = True
    sampling: Annotated[
        Literal["balanced", "natural"],
        Field(
            description="`natural` = the AGB sees the ordinary local batch "
            "(needs `use-anchors=false`)"
        ),
    ] = "balanced"
    beta: Annotated[
        str,
        Field(
            description="weight of the LCB: `dynamic` (equation 8), or a number of at least 0 "
            'as text: `"0.5"` (Table 4)'
        ),
    ] = "dynamic"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.sampling == "natural" and self.use_anchors:
            raise ValueError('sampling="natural" draws local batches only; set use-anchors=false')
        if self.beta != "dynamic" and self.fixed_beta() is None:
            raise ValueError(
                f'beta="{self.beta}" is not allowed: expected "dynamic" or a number of at least 0 '
                f'as text, e.g. "0.5"'
            )
        return self

    def fixed_beta(self) -> float | None:
        """Return the fixed weight of the LCB, or None where `beta` is no such number."""
        try:
            value = float(self.beta)
        except ValueError:
            return None
        return value if math.isfinite(value) and value >= 0 else None

    def anchor_settings(self) -> AnchorSettings | None:
        """Return equations 3-4's constants; None where no anchors are used."""
        if not self.use_anchors:
            return None
        return AnchorSettings(
            per_class=self.anchors_per_class,
            steps=self.anchor_steps,
            learning_rate=self.anchor_learning_rate,
            l2=self.anchor_l2,
            noise=self.anchor_noise,
        )


def two_heads(feature_size: int, spec: ModelSpec) -> Mapping[str, nn.Module]:
    """Return psi_A and psi_L, drawn independently; psi_A first, where FedAvg has its head."""
    return {
        "agb": nn.Linear(feature_size, spec.num_classes),
        "lcb": nn.Linear(feature_size, spec.num_classes),
    }


class FedADBTrainer(Trainer[FedADBParams]):
    """Client half: AGB on balanced batches, LCB on the ordinary local ones, in one step."""

    def begin(self) -> None:
        """Join samples and anchors, and fix this round's beta_k."""
        task, params = self.task, self.params
        sent = task.attachments.get(_ANCHORS)
        anchors = None if sent is None else _anchors(sent)
        self.pool = MixedPool.of(task.data, anchors, params.anchor_label)
        self.sampler = BalancedSampler(self.pool.labels.cpu(), task.generator("agb"))
        self.augmentation = task.generator("agb-flips")
        # Without anchors there is nothing whose quality could attenuate the LCB: tau_t = 0.
        quality = 0.0 if anchors is None else anchors.quality
        gamma = missing_class_rate(task.data.class_counts)
        beta = dynamic_beta(task.server_round, task.num_rounds, gamma, quality)
        fixed = params.fixed_beta()
        self.beta = beta if fixed is None else fixed

    def loss(self, batch: Batch) -> Tensor:
        """Return L_AGB + beta_k L_LCB; the local batch defines the size of both."""
        natural = self.params.sampling == "natural"
        if natural and not self.params.use_lcb:  # nothing of FedADB is left: FedAvg's loss
            return super().loss(batch)
        return dual_branch_loss(
            self.model,
            self.pool,
            agb=batch.indices if natural else self.sampler.draw(len(batch)),
            lcb=batch.indices,
            beta=self.beta if self.params.use_lcb else None,
            generator=self.augmentation,
        )


class FedADB(FedAvg[FedADBParams]):
    """Server half: FedAvg's mean, and class anchors before each round.

    Parameters
    ----------
    params : FedADBParams
        FedADB's own values.
    bench : Workbench
        Anchors are optimised on a model, not on its tensors alone.
    """

    def __init__(self, params: FedADBParams, bench: Workbench) -> None:
        super().__init__(params)
        self._bench = bench

    @classmethod
    def of_run(cls, params: FedADBParams, bench: Workbench) -> Self:
        """Make the half of a run."""
        return cls(params, bench)

    def broadcast(self, inputs: RoundInputs) -> Broadcast:
        """Generate the round's anchors on the global model; all regenerated, no warm start."""
        settings = self.params.anchor_settings()
        if settings is None:
            return Broadcast(inputs.model)
        bench = self._bench
        bench.model.load_state_dict(inputs.model)
        anchors = anchors_of_round(
            bench.model, bench.schema, bench.valid_range, settings, bench.seed, inputs.server_round
        )
        sent = {_ANCHORS: as_attachment(anchors)}
        quality = {"anchor_quality": anchors.quality}
        return Broadcast(inputs.model, sent, artifacts=sent, diagnostics=quality)


def _anchors(sent: Attachment) -> ClassAnchors:
    t = sent.tensors
    return ClassAnchors(t["images"], t["labels"], t["confidences"], sent.scalars["quality"])


def as_attachment(anchors: ClassAnchors) -> Attachment:
    """Return anchors as they are sent and kept."""
    return Attachment(
        tensors={
            "images": anchors.images,
            "labels": anchors.labels,
            "confidences": anchors.confidences,
        },
        scalars={"quality": anchors.quality},
    )


# --- its section of a run's page ------------------------------------------------------------


def report_section(run: RunFiles) -> MethodSection:
    """Show a run's anchors, their quality tau_t, and beta where it followed from it."""
    curves: list[Curves] = []
    rounds, quality = run.rounds.known("anchor_quality")
    if len(rounds):
        curves.append(Curves("Anchor quality τ", "mean confidence", {"tau": (rounds, quality)}))
    weights = _weights(run)
    if weights:
        curves.append(Curves("Weight β of the local branch", "β", weights))
    lead = "Inputs optimised on the global model that the round began with." if run.anchors else ""
    if weights:
        lead += (
            f" β = (t/T)^(γ τ) with T = {run.num_rounds} depends on γ, the share of classes that "
            f"a client lacks."
        )
        if run.class_counts() is not None:
            lead += " The curves are those of the clients that lack least, the median, and most."
    images = {
        t: [
            ClassImage(image, int(label), str(confidence))
            for image, label, confidence in zip(
                a["images"], a["labels"].tolist(), a["confidences"].numpy(), strict=True
            )
        ]
        for t, a in run.anchors.items()
    }
    return MethodSection(
        "Class anchors", lead.strip(), curves, "Class anchor", images, list(_not_shown(run))
    )


def _weights(run: RunFiles) -> Mapping[str, tuple[Floats, Floats]]:
    """Return dynamic beta over rounds for some numbers of lacking classes, where it was used."""
    own = run.config.get("fedadb")
    rounds, quality = run.rounds.known("anchor_quality")
    classes, counts = len(run.class_names), run.class_counts()
    if not isinstance(own, Mapping) or not (len(rounds) and classes):
        return {}
    if own.get("beta") != "dynamic" or not own.get("use-lcb"):
        return {}
    if counts is None:
        lacking = [0, classes // 2, classes - 1]
    else:
        of_clients = np.sort((counts == 0).sum(axis=1))
        lacking = [int(of_clients[i]) for i in (0, len(of_clients) // 2, -1)]
    return {
        f"lacks {m} of {classes} classes": (
            rounds,
            np.array(
                [
                    dynamic_beta(int(t), run.num_rounds, m / classes, tau)
                    for t, tau in zip(rounds, quality, strict=True)
                ]
            ),
        )
        for m in lacking
    }


def _not_shown(run: RunFiles) -> Iterator[str]:
    if not run.anchors and "anchors.safetensors" not in run.damaged:
        yield (
            "anchors.safetensors is not there: the method makes no class anchors, or the run has "
            "not come to its end."
        )
    elif len(run.anchors) == 1:
        yield "The anchors of earlier rounds: snapshot-every keeps them."
    own = run.config.get("fedadb")
    if own is None:
        return
    needed = ("use-lcb", "beta", "use-anchors")
    if not isinstance(own, Mapping) or not own.keys() >= set(needed):
        path = run.folder / "config.toml"
        yield f"{path} cannot be read: its table fedadb has not all of {', '.join(needed)}"
    elif not own["use-lcb"]:
        yield "The weight β: use-lcb=false leaves the local branch out."
    elif own["beta"] != "dynamic":
        yield f"β over rounds: it is fixed at {own['beta']}."
    elif not own["use-anchors"]:
        yield "β over rounds: without anchors τ = 0, so it is 1 for every client."
    else:
        yield (
            "The β that each client used: it is computed on the client and never leaves it. "
            "The curves follow from τ and a number of lacking classes."
        )


METHOD = Method(
    title="FedADB",
    paper="Liu et al., 2026",
    params=FedADBParams,
    trainer=FedADBTrainer,
    server=FedADB,
    heads=two_heads,
    anchors=FedADBParams.anchor_settings,
    report=report_section,
)
