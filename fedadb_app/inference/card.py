"""``MODEL_CARD.md``: what a run's model is, from its folder, and what nobody has tested.

The sections are those of model cards (Mitchell et al., FAT* 2019). What a run does not know is
said to be unknown.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.data.registry import DATASETS
from fedadb_app.inference.deployed import particulars
from fedadb_app.inference.predict import Kept, model_of
from fedadb_app.models.classifier import ModelSpec
from fedadb_app.models.registry import find_model
from fedadb_app.runs.atomic import replace
from fedadb_app.runs.reader import RunFiles, read_files
from strategies.registry import STRATEGIES

CARD = "MODEL_CARD.md"

_UNKNOWN = "not known: the run's folder does not say"


def write_card(run: SavedRun, kept: Kept, folder: Path) -> Path:
    """Write the card of one of a run's models, and return where.

    Raises
    ------
    ConfigError, DataError
        If the run has no such model, or its folder cannot be read.
    StorageError
        If the card cannot be written.
    """
    files = read_files(run.folder)
    parts = (
        _head(run),
        _model(run, kept),
        _use(run),
        _training(run, files),
        _data(run, files),
        _results(run, files, kept),
        _untested(run, files),
    )
    lines = [line for part in parts for line in part]
    replace(folder / CARD, ("\n".join(lines) + "\n").encode())
    return folder / CARD


def _head(run: SavedRun) -> Iterator[str]:
    yield f"# Model card: {run.folder.name}"
    yield ""
    yield "Written by `fedadb` from the run's folder alone. What the run does not know is said."


def _table(rows: Mapping[str, object]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    for name, value in rows.items():
        text = str(value).replace("|", "\\|").replace("\n", " ")
        yield f"| {name} | {text} |"


def _model(run: SavedRun, kept: Kept) -> Iterator[str]:
    inputs, model, facts = run.inputs, model_of(run, kept), particulars(run, kept)
    spec = ModelSpec.of(run.config, inputs.images)
    architecture, entry = find_model(spec.name, spec.image_shape)
    channels, height, width = inputs.image_shape
    yield from ("", "## Model", "")
    yield from _table(
        {
            "architecture": f"{entry.title} (`{architecture}`): {entry.paper}",
            "normalisation layers": f"`{run.config.norm}`, where it has some",
            "parameters": f"{sum(p.numel() for p in model.parameters()):,}",
            "takes in": f"{height}x{width} pixels, {'grey' if channels == 1 else 'RGB'}, 8 bits",
            "the net itself sees them at": "{}x{} pixels".format(*spec.seen_sides),
            "images of another size": f'are resized to that (`resize="{inputs.resize}"`)',
            "normalised by": f"mean {list(inputs.mean)}, deviation {list(inputs.std)}, of [0, 1]",
            "gives": f"a probability for each of {len(inputs.class_names)} classes: "
            f"{', '.join(inputs.class_names)}",
            "which of the run's models": kept,
            "SHA-256 of its file": f"`{facts['model_sha256']}`",
            "hash of the app": f"`{facts['app_hash']}`",
        }
    )


def _use(run: SavedRun) -> Iterator[str]:
    yield from ("", "## Intended use", "")
    yield (
        "To say which of the classes above an image shows that was taken and prepared as those it "
        "was trained on. It knows no other class: of an image of none of them it names one all "
        "the same."
    )
    yield ""
    yield (
        "Nobody has stated here who is meant to use it, on whom, and for which decision. It is no "
        "medical device, and has been approved by no authority as far as this run knows."
    )


def _training(run: SavedRun, files: RunFiles) -> Iterator[str]:
    config, method = run.config, STRATEGIES[run.config.strategy]
    rows: dict[str, object] = {
        "method": f"{method.title} (`{config.strategy}`): {method.paper}",
        "rounds": f"{files.summary['rounds']} of {config.num_server_rounds}; the run "
        f"{files.summary['status']}",
        "it began with": "weights drawn from the seed"
        if not config.weights
        else f"`{Path(config.weights).name}`, SHA-256 `{files.summary.get('weights', _UNKNOWN)}`; "
        "who trained these on what, and under which licence, is not known here",
        "a round": f"{config.local_epochs} local epochs, batches of {config.batch_size}, "
        f"`{config.optimizer}`, learning rate {config.learning_rate:g} × "
        f"{config.learning_rate_decay:g}^(round − 1), weight decay {config.weight_decay:g}"
        f"{f', momentum {config.momentum:g}' if config.optimizer == 'sgd' else ''}"
        f"{f', {config.warmup_rounds} rounds of warm-up' if config.warmup_rounds else ''}",
        "augmentation": "as of the data set" if config.augment else "none",
        "seed": config.seed,
        "robust mean": config.robust,
    }
    if config.privacy == "none":
        rows["differential privacy"] = "none: the model may reveal something of its training images"
    else:
        _, spent = files.rounds.known("epsilon")
        rows["differential privacy"] = (
            f"`{config.privacy}`, epsilon "
            f"{f'{spent[-1]:g}' if len(spent) else _UNKNOWN} at delta {config.delta:g}"
        )
    yield from ("", "## Training", "")
    yield from _table(rows)


def _data(run: SavedRun, files: RunFiles) -> Iterator[str]:
    config, entry = run.config, DATASETS.find(run.config.dataset)
    if config.own_data:
        name, licence = "the nodes' own images", "each node's own affair: not known here"
    else:
        name = f"{entry.title} (`{config.dataset}`){': ' + entry.paper if entry.paper else ''}"
        licence = entry.licence or "not known to this app: ask whoever publishes the images"
    rows: dict[str, object] = {
        "images": name,
        "licence of the images": licence,
        "digest of the images": f"`{files.summary['data']}`" if "data" in files.summary else "none",
    }
    yield from ("", "## Data", "")
    if files.partition is None:
        yield from _table({**rows, "clients": _UNKNOWN})
        return
    clients = files.partition["clients"]
    sizes = [int(client["size"]) for client in clients]
    rows["clients"] = (
        f"{len(sizes)}, with {sum(sizes)} training images ({min(sizes)} to {max(sizes)} each)"
    )
    rows["who holds what"] = ", ".join(
        f"{key} {files.partition[key]}"
        for key in ("rule", "alpha", "classes_per_client", "seed")
        if key in files.partition
    )
    counts = files.class_counts()
    rows["training images per class"] = (
        "known to each node alone"
        if counts is None
        else ", ".join(
            f"{name} {count}"
            for name, count in zip(files.class_names, counts.sum(axis=0).tolist(), strict=True)
        )
    )
    yield from _table(rows)


_EVALUATED = {
    "server": "the whole test part, on the server, after each evaluated round",
    "both": "the whole test part, on the server; the clients' held-out images beside it",
    "clients": "what the clients hold out of their own images, all counted together",
    "none": "nothing: this model has not been evaluated",
}


def _results(run: SavedRun, files: RunFiles, kept: Kept) -> Iterator[str]:
    summary = files.summary
    rows: dict[str, object] = {"evaluated on": _EVALUATED[run.config.evaluate]}
    if summary.get("final_accuracy") is not None:
        rows["accuracy of the last round"] = f"{summary['final_accuracy']} %"
        rows["mean of the five best rounds"] = (
            f"{summary['best5_accuracy']} % (the best were picked by the same images: it flatters)"
        )
    for key, value in dict(summary.get("selection", {})).items():
        if key == "chosen":
            rows["the chosen round"] = (
                f"{value['round']}, chosen by {value['by']}: "
                f"accuracy {value['test']['accuracy']} % on "
                f"{'what clients hold out' if value.get('part') == 'clients' else 'the test part'}"
            )
        else:
            rows[f"how `{key}` was chosen"] = value
    rows |= _further(files, kept)
    yield from ("", "## Results", "")
    if kept == "chosen":
        yield "This card is of the model that validation chose, not of the last round's."
        yield ""
    yield from _table(rows)
    if files.class_accuracy is not None and files.class_accuracy.rows:
        last = files.class_accuracy.rows[-1]
        yield from ("", f"Per class, after round {last[0]}:", "", "| class | accuracy, % |")
        yield "|---|---|"
        for name, cell in zip(files.class_accuracy.header[1:], last[1:], strict=True):
            yield f"| {name} | {cell or 'no test image'} |"


_FURTHER = {
    "auc": ("AUC", ""),
    "balanced-accuracy": ("balanced accuracy", " %"),
    "macro-f1": ("macro F1", ""),
    "ece": ("expected calibration error", ""),
    "brier": ("Brier score", ""),
}


def _further(files: RunFiles, kept: Kept) -> dict[str, str]:
    """Return what ``metrics.csv`` says of this model beside its accuracy, on the test part."""
    last = max(files.metric("test", "accuracy"), default=0)
    number = files.chosen_round if kept == "chosen" else last
    if not last:
        return {}
    found: dict[str, str] = {}
    for name, (title, unit) in _FURTHER.items():
        value = files.metric("test", name).get(number)
        shown = "not defined on these images" if value is None else f"{value:.6g}{unit}"
        found[f"{title}, round {number}"] = shown
    return found


def _untested(run: SavedRun, files: RunFiles) -> Iterator[str]:
    yield from ("", "## What was not tested", "")
    if run.config.evaluate == "none":
        yield "* Anything: no image was kept for a test, or none was looked at."
    yield "* Images from anywhere else than the data above: another hospital, device or protocol."
    yield "* Groups of patients (age, sex, origin): the run knows nothing of them."
    yield "* What a second seed gives: this is one run."
    yield "* Images that are none of the classes, and images that were altered to deceive it."
    yield "* Whether using it helps anybody."
    if files.faults:
        yield ""
        for fault in files.faults.values():
            yield f"Damaged, and so not used here: {fault}."
