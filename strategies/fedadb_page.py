"""What the page of a FedADB run shows of the method: its anchors, tau_t, and beta."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from fedadb_app.dual_branch import dynamic_beta
from fedadb_app.errors import DataError
from fedadb_app.runs.reader import RunFiles, read_kept
from fedadb_app.runs.sections import ClassImage, Curves, MethodSection
from fedadb_app.runs.tables import Floats


def page_section(run: RunFiles) -> MethodSection:
    """Show a run's anchors, their quality tau_t, and beta where it followed from it."""
    anchors, faults = _kept_anchors(run)
    curves: list[Curves] = []
    rounds, quality = run.rounds.known("anchor_quality")
    if len(rounds):
        curves.append(Curves("Anchor quality τ", "mean confidence", {"tau": (rounds, quality)}))
    weights = _weights(run)
    if weights:
        curves.append(Curves("Weight β of the local branch", "β", weights))
    lead = "Inputs optimised on the global model that the round began with." if anchors else ""
    if weights:
        lead += (
            f" β = (t/T)^(γ τ) with T = {_horizon(run)} depends on γ, the share of classes that "
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
        for t, a in anchors.items()
    }
    return MethodSection(
        "Class anchors",
        lead.strip(),
        curves,
        "Class anchor",
        images,
        list(_not_shown(run, len(anchors), bool(faults))),
        faults,
    )


def _kept_anchors(run: RunFiles) -> tuple[Mapping[int, Mapping[str, Tensor]], list[str]]:
    """Return round -> the anchors that it was trained with, and a sentence per damaged file."""
    found: dict[int, Mapping[str, Tensor]] = {}
    faults: list[str] = []
    for server_round, path in run.kept("anchors").items():
        try:
            found[server_round] = _anchors(path)
        except DataError as error:
            faults.append(str(error))
    return found, faults


def _anchors(path: Path) -> Mapping[str, Tensor]:
    content, wrong = read_kept(path), ""
    names = ("images", "labels", "confidences")
    if missing := [name for name in names if name not in content]:
        raise DataError(f"{path} cannot be read: it lacks {missing[0]}")
    images, labels, confidences = (content[name] for name in names)
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.numel():
        wrong = f"images of the shape {tuple(images.shape)}"
    elif not labels.shape == confidences.shape == images.shape[:1] or labels.is_floating_point():
        wrong = "its labels and confidences are not one per image"
    if wrong:
        raise DataError(f"{path} cannot be read: {wrong}")
    return {"images": images, "labels": labels, "confidences": confidences}


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
                    dynamic_beta(int(t), _horizon(run), m / classes, tau)
                    for t, tau in zip(rounds, quality, strict=True)
                ]
            ),
        )
        for m in lacking
    }


def _horizon(run: RunFiles) -> int:
    own = run.config.get("fedadb")
    horizon = own.get("beta-rounds") if isinstance(own, Mapping) else 0  # 0.1.0 had no such key
    return horizon if isinstance(horizon, int) and horizon > 0 else run.num_rounds


def _not_shown(run: RunFiles, kept: int, damaged: bool) -> Iterator[str]:
    if not kept and not damaged:
        yield (
            "anchors.safetensors is not there: the method makes no class anchors, or the run has "
            "not come to its end."
        )
    elif kept == 1:
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
