"""A run's model as others use it: image bytes in, class probabilities out, and its particulars."""

import hashlib
import json

from torch import Tensor, nn

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.app_hash import running_app_hash
from fedadb_app.inference.predict import FILES, Kept
from fedadb_app.models.classifier import ImageClassifier, ModelSpec
from fedadb_app.runs.model_file import ModelFile
from fedadb_app.runs.summary import read_summary


class Deployed(nn.Module):
    """Normalisation, extractor, the evaluated head, softmax.

    Parameters
    ----------
    model : ImageClassifier
        In evaluation mode.
    inputs : ModelFile
        What it takes in.
    """

    def __init__(self, model: ImageClassifier, inputs: ModelFile) -> None:
        super().__init__()
        self.features, self.head = model.features, model.heads[model.evaluated_head]
        self._preparation = inputs.preparation

    def forward(self, images: Tensor) -> Tensor:
        """Return class probabilities, float32 ``(N, C)``.

        Parameters
        ----------
        images : torch.Tensor
            uint8, ``(N, height, width, channels)``, as image libraries hand them on.
        """
        channels_first = images.permute(0, 3, 1, 2)
        normalised = self._preparation.normalise(channels_first, images.device)
        logits: Tensor = self.head(self.features(normalised))
        return logits.softmax(dim=1)


def particulars(run: SavedRun, kept: Kept) -> dict[str, str]:
    """Return what a file that leaves the run's folder says of itself, as texts (some JSON)."""
    inputs, summary = run.inputs, read_summary(run.folder)
    channels, height, width = inputs.image_shape
    order = "red, green, blue" if channels == 3 else "grey"
    return {
        "class_names": json.dumps(inputs.class_names, ensure_ascii=False),
        "input": f"uint8 (N, {height}, {width}, {channels}), 0 to 255, {order}",
        "output": "probabilities, float32 (N, classes), in the order of class_names",
        "mean": json.dumps(inputs.mean),
        "std": json.dumps(inputs.std),
        "resize": inputs.resize,
        "intensity": inputs.intensity,
        "architecture": ModelSpec.of(run.config, inputs.images).architecture,
        "norm": run.config.norm,
        "strategy": run.config.strategy,
        "model": kept,
        "rounds": str(summary.get("rounds", "")),
        "model_sha256": hashlib.sha256((run.folder / FILES[kept]).read_bytes()).hexdigest(),
        "data_digest": str(summary.get("data", "")),
        "app_hash": running_app_hash(),
    }
