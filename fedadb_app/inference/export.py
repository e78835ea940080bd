"""`fedadb export`: one file that needs neither this app nor, as ONNX, PyTorch."""

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save

from fedadb_app.analysis.runs import SavedRun
from fedadb_app.data.intake.new_images import take_in_new_images
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.evaluation import evaluate
from fedadb_app.inference.deployed import Deployed, particulars
from fedadb_app.inference.predict import (
    Kept,
    as_samples,
    model_of,
    refuse_batch_local,
)
from fedadb_app.models.classifier import ImageClassifier
from fedadb_app.runs.atomic import replace

MOST_CHECKED = 256
"""Images on which an ONNX file is compared; more take longer and show the same."""

TOLERANCE = 1e-4
"""By which a probability may differ from PyTorch's; a wrong operator or order differs by more."""

Pixels = npt.NDArray[np.uint8]


def export_safetensors(run: SavedRun, kept: Kept, target: Path) -> None:
    """Write extractor and evaluated head with their particulars as metadata.

    Raises
    ------
    ConfigError, DataError
        As `model_of`.
    StorageError
        If the file cannot be written.
    """
    refuse_batch_local(run, "exporting")
    tensors = Deployed(model_of(run, kept).cpu(), run.inputs).state_dict()
    plain = {name: tensor.contiguous() for name, tensor in tensors.items()}
    replace(target, save(plain, particulars(run, kept)))


def export_onnx(run: SavedRun, kept: Kept, target: Path, images: Path | None = None) -> str:
    """Write an ONNX file that has been compared with PyTorch on real images.

    Parameters
    ----------
    run, kept
        As of `predict`.
    target : Path
        The file to write.
    images : Path or None
        Images to compare on; None: the test part of the run's data set, as it lies here.

    Returns
    -------
    str
        On how many images it was compared, and how much a probability differs at most.

    Raises
    ------
    ConfigError
        If the model cannot be used image by image, or ONNX is not installed.
    DataError
        If there are no images to compare on, or ONNX says something else of them than PyTorch.
    StorageError
        If the file cannot be written.
    """
    refuse_batch_local(run, "exporting")
    model = model_of(run, kept).cpu()
    pixels = _real_images(run, images)
    facts = particulars(run, kept)
    content = _converted(model, run)
    compared = _compare(content, model, run, pixels)
    replace(target, _with_metadata(content, {**facts, "compared": compared}))
    return compared


def _real_images(run: SavedRun, images: Path | None) -> Pixels:
    """Return up to `MOST_CHECKED` images, evenly from all, ``(N, channels, height, width)``."""
    if images is None:
        try:
            pixels = run.dataset.test_images
        except DataError as error:
            raise DataError(
                f"{error}; an ONNX file is compared with PyTorch on real images: give some with "
                f"--images"
            ) from error
        return _some(pixels)
    with TemporaryDirectory() as folder:
        return _some(take_in_new_images(images, run.inputs.options, Path(folder)).pixels)


def _some(pixels: Pixels) -> Pixels:
    return np.array(pixels[:: max(1, -(-len(pixels) // MOST_CHECKED))])


def _converted(model: ImageClassifier, run: SavedRun) -> bytes:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'an ONNX file needs the extra "export": pip install "fedadb-app[export]"'
        ) from error
    channels, height, width = run.inputs.image_shape
    example = torch.zeros(2, height, width, channels, dtype=torch.uint8)
    deployed = Deployed(model, run.inputs).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # what matters is compared afterwards
        logging.getLogger("onnxscript").setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                deployed,
                (example,),
                dynamo=True,
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
                external_data=False,
                verbose=False,
            )
        except RuntimeError as error:  # of an operator that ONNX lacks, among others
            first = str(error).strip().partition("\n")[0]
            raise DataError(
                f"{run.folder}: the model cannot be written as ONNX: {first}"
            ) from error
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def _compare(content: bytes, model: ImageClassifier, run: SavedRun, pixels: Pixels) -> str:
    """Run both, one image alone and the others together; say how much they differ."""
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    last = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    parts = [part for part in (last[:1], last[1:]) if len(part)]
    found = np.concatenate([session.run(None, {"images": part})[0] for part in parts])
    exact = run.config.model_copy(update={"precision": "fp32"})
    samples = as_samples(run.inputs, pixels, torch.device("cpu"))
    expected = evaluate(model, samples, exact).probabilities
    difference = float(np.abs(found - expected).max())
    others = int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
    said = f"{len(pixels)} images, largest difference of a probability {difference:.1e}"
    if not difference <= TOLERANCE or others:
        raise DataError(
            f"{run.folder}: the ONNX file is not written: it differs from PyTorch ({said}, "
            f"{others} other classes); more than {TOLERANCE:g} is not allowed"
        )
    return said


def _with_metadata(content: bytes, facts: Mapping[str, str]) -> bytes:
    import onnx

    proto = onnx.load_model_from_string(content)
    onnx.helper.set_model_props(proto, dict(facts))
    proto.producer_name = "fedadb-app"
    return bytes(proto.SerializeToString())
