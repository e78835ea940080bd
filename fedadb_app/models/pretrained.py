"""Pretrained weights from a file on the server: read, checked, and put under a run's own heads.

Only the server opens the file: what a node gets of it is the global model of round 1.
"""

import hashlib
import io
import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from fedadb_app.errors import ConfigError
from fedadb_app.models.classifier import ImageClassifier, StateDict
from fedadb_app.models.library import CLASSIFIERS, STATISTICS, is_constant

_OWN = "features."
"""How names begin in a ``model.safetensors`` of this app; its heads are ``heads.*``."""

_NESTED = ("state_dict", "model")
"""Where training scripts keep the tensors in a file that holds more."""


def load_weights(model: ImageClassifier, path: Path) -> str:
    """Load a file's weights into the extractor; the heads stay as they were drawn.

    Parameters
    ----------
    model : ImageClassifier
        Changed in place.
    path : Path
        A ``.safetensors`` file, or one that ``torch.save`` wrote of a state dict (torchvision's
        ``.pth``); the names are those of the library's net, or this app's.

    Returns
    -------
    str
        The SHA-256 of the file.

    Raises
    ------
    ConfigError
        If the file cannot be read, or its tensors are not those of this net.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f'weights="{path}" cannot be read: {error.strerror}') from error
    found = _tensors(path, content)
    features: nn.Module = model.features
    if any(name.startswith(_OWN) for name in found):  # a run's own: heads.* are another task's
        part = {k.removeprefix(_OWN): v for k, v in found.items() if k.startswith(_OWN)}
        found = OrderedDict(part)
    else:
        features = getattr(features, "net", features)  # without what comes before a library's net
    _load(features, found, path)
    return hashlib.sha256(content).hexdigest()


def _tensors(path: Path, content: bytes) -> "OrderedDict[str, Tensor]":
    """Return a file's tensors; nothing in it is executed."""
    try:
        if path.suffix == ".safetensors":
            found: object = load_safetensors(content)
        else:
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (
        SafetensorError,
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
    ) as error:
        kind = "safetensors" if path.suffix == ".safetensors" else "torch.save of tensors alone"
        raise ConfigError(f'weights="{path}" cannot be read as {kind}') from error
    for key in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(v, Tensor) for v in found.values()):
        raise ConfigError(f'weights="{path}" holds no state dict: expected tensors by name')
    tensors = OrderedDict((_renamed(name), value) for name, value in found.items())
    # Versions of modules, by which PyTorch reads what an older torchvision wrote.
    tensors._metadata = getattr(found, "_metadata", {})  # type: ignore[attr-defined]
    return tensors


def _renamed(name: str) -> str:
    """Return the name of today for one in torchvision's published DenseNets (``norm.1``)."""
    return re.sub(r"(\.denselayer\d+\.(?:norm|conv))\.(\d)\.", r"\1\2.", name)


def _load(features: nn.Module, found: "OrderedDict[str, Tensor]", path: Path) -> None:
    wanted: StateDict = features.state_dict()
    for name, value in found.items():
        if name not in wanted:
            continue
        if _summed(value, wanted[name]):
            value = found[name] = value.sum(dim=1, keepdim=True)
        if value.shape != wanted[name].shape:
            raise ConfigError(
                f'weights="{path}" does not fit the model: {name} is {tuple(value.shape)} there, '
                f"and {tuple(wanted[name].shape)} here"
            )
        if not torch.isfinite(value).all():
            raise ConfigError(f'weights="{path}": {name} has values that are not finite')
    try:
        missing, unexpected = features.load_state_dict(found, strict=False)
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise ConfigError(f'weights="{path}" does not fit the model: {why}') from error
    unexpected = [
        name
        for name in unexpected
        if name.partition(".")[0] not in CLASSIFIERS
        and not name.endswith(STATISTICS)  # of batch normalisation that `norm` has replaced
        and not is_constant(name, found[name])
    ]
    if missing or unexpected:
        raise ConfigError(
            f'weights="{path}" is of another model: '
            + " and ".join(
                f"it {what} {_some(names)}"
                for what, names in (("lacks", missing), ("also has", unexpected))
                if names
            )
        )


def _summed(value: Tensor, wanted: Tensor) -> bool:
    """Whether a first layer for colour becomes one for grey: its weights are added up."""
    return value.dim() == 4 and value.shape[1] == 3 and wanted.shape[1:2] == (1,)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return f"{', '.join(listed[:3])}{more}"
