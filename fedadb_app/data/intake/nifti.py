"""NIfTI slices, with nibabel (``pip install "fedadb-app[nifti]"``)."""

from pathlib import Path

import numpy as np

from fedadb_app.data.intake.frames import (
    Decoded,
    Frame,
    ImageError,
    check_frames,
    check_pixels,
)
from fedadb_app.data.intake.options import IntakeOptions


def decode_nifti(path: Path, options: IntakeOptions) -> Decoded:
    """Decode a volume: axial slices, from feet to head, front up, the patient's right at the left.

    Raises
    ------
    ImageError
        Without nibabel, for several slices that are not to be taken one by one, for RGB values
        and for more than three dimensions.
    """
    try:
        import nibabel
    except ImportError as error:
        raise ImageError(
            "NIfTI without nibabel", 'is NIfTI: pip install "fedadb-app[nifti]" to read it'
        ) from error
    volume = nibabel.as_closest_canonical(nibabel.load(path))  # type: ignore[no-untyped-call]
    shape = tuple(volume.shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if not 2 <= len(shape) <= 3 or volume.get_data_dtype().kind not in "iuf":
        raise ImageError(
            "NIfTI that is no volume",
            f"is NIfTI of shape {tuple(volume.shape)} and type {volume.get_data_dtype()}; "
            f"volumes of numbers are read",
        )
    width, height, *depth = shape
    slices = depth[0] if depth else 1
    check_frames(slices, options.frames, "slices")
    check_pixels(height, width, slices)
    stored = np.asanyarray(volume.dataobj).reshape(width, height, slices)
    plain = stored.dtype == np.uint8
    values = stored if plain else stored.astype(np.float32)
    # Canonical axes run to the right, front and head of the patient; rows of an image run down.
    frames = tuple(
        Frame(np.ascontiguousarray(values[::-1, ::-1, z].T)[..., None]) for z in range(slices)
    )
    return Decoded("NIfTI", f"grey, {volume.get_data_dtype()}", frames)
