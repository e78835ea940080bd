"""DICOM and NIfTI: pixels as a viewer shows them, patients without a name, reasons for the rest."""

import hashlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
from data.intake.conftest import noise
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, RLELossless, generate_uid

from fedadb_app.data.intake.decode import decode, kind_of
from fedadb_app.data.intake.dicom import node_salt, patient_of
from fedadb_app.data.intake.find import FoundFile
from fedadb_app.data.intake.frames import Decoded, ImageError
from fedadb_app.data.intake.options import IntakeOptions
from fedadb_app.data.intake.prepare import prepare

SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"


def dicom(path: Path, pixels: np.ndarray, **tags) -> Path:
    """Write grey ``(h, w)`` or colour ``(h, w, 3)`` pixels, or frames of them."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    data.SOPClassUID, data.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", generate_uid()
    colour = pixels.shape[-1] == 3
    data.Rows, data.Columns = pixels.shape[-3:-1] if colour else pixels.shape[-2:]
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        data.PlanarConfiguration = 0
    if pixels.ndim > 2 + colour:
        data.NumberOfFrames = len(pixels)
    data.BitsAllocated = data.BitsStored = pixels.itemsize * 8
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    data.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    pydicom.dcmwrite(path, data, enforce_file_format=True)
    return path


def read(path: Path, **options) -> list[np.ndarray]:
    wanted = IntakeOptions(**options)
    decoded = decode(path, "DICOM", ".dcm", wanted)
    window = wanted.scale
    return [prepare(frame, wanted, window).pixels for frame in decoded.frames]


VALUES = np.repeat(np.arange(28, dtype=np.uint16)[None] * 100, 28, 0)  # 0 … 2700


@pytest.mark.parametrize(
    ("tags", "share"),
    [
        # DICOM PS3.3, C.11.2.1.2.1: ((x - (c - 0.5)) / (w - 1)) + 0.5
        ({"WindowCenter": 1000, "WindowWidth": 2000}, lambda x: (x - 999.5) / 1999 + 0.5),
        (
            {"WindowCenter": 1000, "WindowWidth": 2000, "VOILUTFunction": "LINEAR_EXACT"},
            lambda x: (x - 1000) / 2000 + 0.5,
        ),
        (
            {"WindowCenter": 1000, "WindowWidth": 2000, "VOILUTFunction": "SIGMOID"},
            lambda x: 1 / (1 + np.exp(-4 * (x - 1000) / 2000)),
        ),
        (
            {"WindowCenter": [500, 9], "WindowWidth": [1000, 1]},  # the first of several
            lambda x: (x - 499.5) / 999 + 0.5,
        ),
        (
            {
                "RescaleSlope": 2,
                "RescaleIntercept": -1024,
                "WindowCenter": 40,
                "WindowWidth": 400,
            },
            lambda x: (2 * x - 1024 - 39.5) / 399 + 0.5,
        ),
    ],
)
def test_the_files_own_window(tmp_path, tags, share):
    (made,) = read(dicom(tmp_path / "x.dcm", VALUES, **tags))
    expected = np.floor(np.clip(share(VALUES.astype(float)), 0, 1) * 255 + 0.5)
    assert np.array_equal(made[..., 0], expected)


def test_a_configured_window_is_in_rescaled_units_and_wins(tmp_path):
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 0, "WindowWidth": 9}
    (made,) = read(dicom(tmp_path / "x.dcm", VALUES, **tags), intensity="-1000,400")
    expected = np.floor(np.clip((VALUES - 1024.0 + 1000) / 1400, 0, 1) * 255 + 0.5)
    assert np.array_equal(made[..., 0], expected)


def test_without_any_window_it_is_refused(tmp_path):
    with pytest.raises(ImageError, match="more than 8 bits"):
        read(dicom(tmp_path / "x.dcm", VALUES))


@pytest.mark.parametrize("window", [{}, {"WindowCenter": 128, "WindowWidth": 256}])
def test_monochrome1_is_inverted(tmp_path, window):
    pixels = noise(0)
    tags = {"PhotometricInterpretation": "MONOCHROME1", **window}
    (made,) = read(dicom(tmp_path / "x.dcm", pixels, **tags))
    assert np.array_equal(made[..., 0], 255 - pixels)


def test_eight_bits_and_colours_are_taken_as_they_are(tmp_path):
    grey, colour = noise(0), noise(1, (28, 28, 3))
    assert np.array_equal(read(dicom(tmp_path / "g.dcm", grey))[0][..., 0], grey)
    assert np.array_equal(read(dicom(tmp_path / "c.dcm", colour))[0], colour)


def test_compressed_pixels(tmp_path):
    pixels = noise(0)
    path = dicom(tmp_path / "x.dcm", pixels)
    data = pydicom.dcmread(path)
    data.compress(RLELossless)
    data.save_as(path)
    assert np.array_equal(read(path)[0][..., 0], pixels)


def test_frames(tmp_path):
    stack = noise(0, (3, 28, 28))
    path = dicom(tmp_path / "x.dcm", stack)
    with pytest.raises(ImageError, match=r"holds 3 images.*frames="):
        read(path)
    for made, expected in zip(read(path, frames="each"), stack, strict=True):
        assert np.array_equal(made[..., 0], expected)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"BurnedInAnnotation": "YES"}, "BurnedInAnnotation is YES"),
        ({"PhotometricInterpretation": "HSV"}, "kind HSV"),
        ({"Rows": 20_000, "Columns": 20_000}, "20000x20000 pixels"),
        ({"PixelData": b"\0" * 100}, "cannot be read as an image"),
    ],
)
def test_what_is_refused(tmp_path, tags, words):
    with pytest.raises(ImageError, match=words):
        read(dicom(tmp_path / "x.dcm", noise(0), **tags))


def test_every_file_that_pydicom_ships_goes_through_or_has_a_reason():
    count, reasons = 0, []
    options = IntakeOptions(frames="each", intensity="0,4095")
    for path in sorted(p for p in SHIPPED.rglob("*") if p.is_file()):
        suffix = FoundFile((path.name,), path.stat()).suffix
        if (kind := kind_of(path, suffix)) != "DICOM":
            continue
        try:
            decoded = decode(path, kind, suffix, options)
            assert isinstance(decoded, Decoded)
            image = prepare(decoded.frames[0], options, options.scale)
            assert image.pixels.dtype == np.uint8
            assert image.pixels.shape[2] in (1, 3)
            count += 1
        except ImageError as error:
            reasons.append(str(error))
    assert count > 60
    assert len(reasons) > 60  # most of these have no image
    assert all(len(reason) > 20 and "\n" not in reason for reason in reasons)


@pytest.mark.parametrize("name", ["JPEG-lossy.dcm", "JPGExtended.dcm"])
def test_jpeg_of_12_bits_is_refused_with_what_to_do(name):
    with pytest.raises(ImageError) as caught:
        decode(next(SHIPPED.rglob(name)), "DICOM", ".dcm", IntakeOptions(intensity="0,4095"))
    assert caught.value.kind == "with a compression that is not read"
    assert "JPEG Extended (Process 2 and 4), which is not read here (decompress it" in str(
        caught.value
    )


# --- patients ---------------------------------------------------------------------------------


def test_patients_are_known_by_their_number_and_named_by_none(hospital):
    for label in "ab":
        for p in range(5):
            for s in range(2):
                path = hospital.path(f"{label}/{p}{s}.dcm")
                dicom(path, noise(100 * p + 10 * s + (label == "b")), PatientID=f"Müller{p}")
    report, made = hospital.take_in()
    assert not set(made["train_patients"]) & set(made["test_patients"])
    assert report.parts["train"].patients == 4
    assert "PatientID of 20 DICOM files" in report.patients
    assert "Müller" not in str(report.to_json())


def test_a_patients_digest_needs_the_salt(tmp_path):
    path = dicom(tmp_path / "x.dcm", noise(0), PatientID="4711")
    one, two = patient_of(path, b"one"), patient_of(path, b"two")
    assert one != two
    assert one == patient_of(path, b"one")
    assert hashlib.sha256(b"4711").hexdigest() not in (one, two)
    assert patient_of(dicom(tmp_path / "y.dcm", noise(0), PatientID=""), b"one") is None
    (tmp_path / "z.dcm").write_bytes(b"x")
    assert patient_of(tmp_path / "z.dcm", b"one") is None


def test_a_salt_is_made_once_and_for_this_user(tmp_path):
    salt = node_salt(tmp_path / "cache")
    assert len(salt) == 32
    assert node_salt(tmp_path / "cache") == salt
    assert (tmp_path / "cache" / "patient-salt").stat().st_mode & 0o077 == 0
    assert node_salt(tmp_path / "other") != salt


# --- NIfTI ------------------------------------------------------------------------------------

nibabel = pytest.importorskip("nibabel")


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_slices_of_a_volume(hospital, suffix):
    """The patient's front is up; the right side at the left, as radiologists look at it."""
    volume = np.zeros((30, 28, 2), np.int16)  # to the right, to the front, to the head
    volume[20:, :, 0] = 1000  # right half, first slice
    volume[:, 20:, 1] = 1000  # front, second slice
    for name in ("a/0", "a/1", "b/0", "b/1"):
        nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), hospital.path(f"{name}{suffix}"))
    hospital.refused("holds 2 slices", intensity="0,1000")
    _, made = hospital.take_in(frames="each", intensity="0,1000")
    right, front = made["train_images"][:2, 0]
    assert right.shape == (28, 30)
    assert (right[:, :10] == 255).all()
    assert (right[:, 10:] == 0).all()
    assert (front[:8] == 255).all()
    assert (front[8:] == 0).all()


def test_a_volume_stored_the_other_way_round_looks_the_same(tmp_path):
    volume = noise(0, (30, 28, 2))
    straight, turned = tmp_path / "s.nii", tmp_path / "t.nii"
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), straight)
    nibabel.save(nibabel.Nifti1Image(volume[::-1], np.diag([-1, 1, 1, 1])), turned)
    options = IntakeOptions(frames="each")
    one, two = (decode(p, "NIfTI", ".nii", options).frames for p in (straight, turned))
    for left, right in zip(one, two, strict=True):
        assert np.array_equal(left.pixels, right.pixels)


def test_four_dimensions_are_refused(tmp_path):
    path = tmp_path / "x.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((28, 28, 2, 5), np.int16), np.eye(4)), path)
    with pytest.raises(ImageError, match="shape"):
        decode(path, "NIfTI", ".nii", IntakeOptions(frames="each"))
