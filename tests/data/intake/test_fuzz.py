"""Files damaged at random: an image of the right shape, or a sentence; no crash, no hang."""

import io

import numpy as np
import pytest
import tifffile
from data.intake.conftest import noise, png16
from data.intake.test_dicom import dicom
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from fedadb_app.data.intake.decode import decode, kind_of
from fedadb_app.data.intake.folder import take_in_folder
from fedadb_app.data.intake.frames import Decoded, ImageError
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.prepare import prepare
from fedadb_app.errors import DataError

FORMATS = {
    "png": "L LA RGB RGBA P 1 I;16",
    "jpg": "L RGB CMYK",
    "gif": "L P RGB",
    "bmp": "1 L RGB P",
    "tif": "1 L LA RGB RGBA P CMYK I;16 I F",
    "webp": "RGB RGBA",
    "jp2": "L RGB RGBA",
    "ppm": "1 L RGB",
}
KINDS = [f"{suffix} {mode}" for suffix, modes in FORMATS.items() for mode in modes.split()]
KINDS += ["png16 1", "png16 2", "png16 3", "png16 4", "tiff planes", "tiff stack", "dicom"]
SUFFIXES = [".png", ".jpg", ".tif", ".dcm", ".nii", ".gif", ".jp2", "without suffix", ".xyz"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """One good file of each kind, as bytes."""
    folder = tmp_path_factory.mktemp("samples")
    made = {}
    for kind in KINDS:
        name, _, mode = kind.partition(" ")
        if name == "png16":
            path = png16(folder / "x.png", noise(0, (28, 28, int(mode)), 0, 4096, np.uint16))
        elif name == "tiff":
            path = folder / "x.tif"
            values = noise(0, (3, 28, 28), 0, 4096, np.uint16)
            how = {"photometric": "rgb", "planarconfig": "separate"} if mode == "planes" else {}
            tifffile.imwrite(path, values, **how)
        elif name == "dicom":
            path = dicom(folder / "x.dcm", noise(0))
        else:
            path = folder / f"x.{name}"
            image = Image.fromarray(noise(0, (28, 28, 3))).convert("L" if ";" in mode else "RGB")
            if mode == "I;16":
                image = Image.fromarray(noise(0, dtype=np.uint16))
            elif mode in ("I", "F"):
                image = image.convert("L")
            image.convert(mode).save(path) if mode != "I;16" else image.save(path)
        made[kind] = path.read_bytes()
    return made


@st.composite
def damage(draw):
    """A list of what is done to the bytes: cut off, overwritten, moved."""
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(["cut", "flip", "fill", "insert", "drop"]),
                st.floats(0, 1),
                st.integers(0, 255),
                st.integers(1, 40),
            ),
            max_size=4,
        )
    )


def damaged(raw: bytes, steps) -> bytes:
    content = bytearray(raw)
    for what, where, value, length in steps:
        at = int(where * len(content))
        if what == "cut":
            del content[at:]
        elif what == "flip" and at < len(content):
            content[at] ^= value
        elif what == "fill":
            content[at : at + length] = bytes([value]) * len(content[at : at + length])
        elif what == "insert":
            content[at:at] = bytes([value]) * length
        elif what == "drop":
            del content[at : at + length]
    return bytes(content)


def check_sentence(said: str) -> None:
    assert said.strip()
    assert "\n" not in said


@pytest.mark.timeout(120)  # no file, however damaged, keeps a decoder for long
@given(
    kind=st.sampled_from(KINDS),
    steps=damage(),
    suffix=st.sampled_from(SUFFIXES),
    frames=st.sampled_from(["refuse", "each"]),
    intensity=st.sampled_from(["", "0,4095"]),
    transparency=st.sampled_from(["black", "white", "refuse"]),
)
@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_ends_in_an_image_or_a_sentence(
    samples, tmp_path, kind, steps, suffix, frames, intensity, transparency
):
    path = tmp_path / "x"
    path.write_bytes(damaged(samples[kind], steps))
    options = IntakeOptions(
        image_shape=(3, 32, 32), frames=frames, intensity=intensity, transparency=transparency
    )
    found = kind_of(path, suffix)
    if found is None:
        return
    try:
        decoded = decode(path, found, suffix, options)
        images = [prepare(frame, options, options.scale) for frame in decoded.frames]
    except ImageError as error:
        check_sentence(str(error))
        return
    assert images
    for image in images:
        assert image.pixels.shape == (32, 32, 3)
        assert image.pixels.dtype == np.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_every_sound_file_is_read_whatever_it_is_called(samples, tmp_path, kind):
    path = tmp_path / "x"
    path.write_bytes(samples[kind])
    options = IntakeOptions(frames="each", intensity="0,4095")
    found = kind_of(path, "without suffix")
    assert found is not None
    decoded = decode(path, found, "without suffix", options)
    assert isinstance(decoded, Decoded)
    assert all(frame.pixels.shape[:2] == (28, 28) for frame in decoded.frames)


@given(
    members=st.lists(
        st.tuples(st.sampled_from(KINDS), damage(), st.sampled_from(SUFFIXES[:-2])),
        min_size=4,
        max_size=8,
    )
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_folder_of_anything_is_taken_in_whole_or_refused(samples, tmp_path_factory, members):
    """Nothing is lost: as many images as files, or a sentence."""
    root = tmp_path_factory.mktemp("hospital")
    for i, (kind, steps, suffix) in enumerate(members):
        path = root / "ab"[i % 2] / f"{i}{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(damaged(samples[kind], steps))
    out = tmp_path_factory.mktemp("out")
    options = IntakeOptions(image_shape=(1, 28, 28), intensity="0,4095")
    try:
        report = take_in_folder(root, options, out, lambda: b"salt")
    except DataError as error:
        check_sentence(str(error))
        return
    assert report.images == report.read == report.found == len(members)
    counts = [len(np.load(out / f"{part}_labels.npy")) for part in ("train", "test")]
    assert sum(counts) == len(members)
    images = np.load(io.BytesIO((out / "train_images.npy").read_bytes()))
    assert images.shape == (counts[0], 1, 28, 28)
