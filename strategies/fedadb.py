"""FedADB: Liu et al., "Class Anchor-Driven Dual-Branch Federated Learning", 2026.

Server, before each round: one batch of class anchors on the global model (equations 3-5,
`fedadb_app.anchors`), sent with their mean confidence tau_t. Client k: one extractor with two
heads trained on (equations 6-8, `fedadb_app.dual_branch`)

    L_total = L_AGB + beta_k L_LCB,    beta_k = (t/T)^(gamma_k tau_t)

The server averages everything, both heads included, by samples (equation 1). The AGB head is the
one that anchors are optimised on and that is evaluated; the accuracy of the LCB's, and of the mean
of both heads' probabilities, goes to diagnostics.csv. Open choices: docs/decisions.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from fedadb_app.aggregation import ClientUpdate
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
from strategies.fedadb_page import page_section
from strategies.fedavg import FedAvg
from strategies.method import Method
from strategies.server import Broadcast, RoundInputs, ServerUpdate, Workbench
from strategies.tunable import OneOf, Range

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
    beta_rounds: Annotated[
        int,
        Field(
            ge=0,
            description="T of the dynamic beta, (t/T)^(gamma tau), which is 1 from then on; `0` = "
            "the run's own number of rounds; the paper's is 1000",
        ),
    ] = 0
    weights: Annotated[
        Literal["samples", "equal"],
        Field(
            description="what the clients' models weigh in the mean: `samples` (equation 1), or "
            "all the same; of no effect with `privacy` or `robust`, which weigh them alike"
        ),
    ] = "samples"

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

    def beta_horizon(self, num_rounds: int) -> int:
        """Return T of the dynamic beta in a run of so many rounds."""
        return self.beta_rounds or num_rounds

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
        horizon = params.beta_horizon(task.num_rounds)
        beta = dynamic_beta(task.server_round, horizon, gamma, quality)
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

    def update(self, inputs: RoundInputs, updates: Sequence[ClientUpdate]) -> ServerUpdate:
        """Return the mean of both heads and the extractor; evaluate the LCB's head beside it."""
        if self.params.weights == "equal":
            updates = [replace(update, num_examples=1) for update in updates]
        mean = super().update(inputs, updates)
        return replace(mean, other_heads=("lcb",)) if self.params.use_lcb else mean


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


METHOD = Method(
    title="FedADB",
    paper="Liu et al., 2026",
    params=FedADBParams,
    trainer=FedADBTrainer,
    server=FedADB,
    heads=two_heads,
    anchors=FedADBParams.anchor_settings,
    report=page_section,
    captions={
        "accuracy_lcb_head": "Accuracy of the LCB's head",
        "accuracy_mean_of_heads": "Accuracy of both heads' mean",
    },
    tunable={
        "anchors-per-class": OneOf((1, 2, 5)),
        "anchor-learning-rate": Range(0.1, 10.0),
        "anchor-noise": Range(0.1, 2.0),
    },
)
