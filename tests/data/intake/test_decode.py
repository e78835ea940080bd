"""Orientation, frames, transparency, formats: what is in a file is what a viewer shows."""

import numpy as np
import pytest
import tifffile
from data.intake.conftest import noise
from PIL import Image

from fedadb_app.data.intake.frames import upright

TOP = np.zeros((40, 32), np.uint8)
TOP[:10] = 250  # bright at the top, in any viewer
STORED = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
"""Orientation tag -> Pillow's transposition that a camera held so stores."""


def stored(tag: int, mode: str) -> Image.Image:
    image = Image.fromarray(TOP).convert(mode)
    return image if STORED[tag] is None else image.transpose(STORED[tag])


def with_tag(tag: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_every_orientation_comes_upright(hospital, suffix, mode):
    how = {"quality": 95} if suffix == "jpg" else {"lossless": True} if suffix == "webp" else {}
    for label in "ab":
        for tag in STORED:
            path = hospital.path(f"{label}/{tag}.{suffix}")
            stored(tag, mode).save(path, exif=with_tag(tag), **how)
    report, made = hospital.take_in()
    for image in [*made["train_images"], *made["test_images"]]:
        assert image.shape[1:] == (40, 32)
        assert (image[0, :8] > 200).all()
        assert (image[0, 12:] < 50).all()
    if suffix != "tif":  # Pillow turns these by itself
        assert report.notes["turned upright by its orientation tag"] == 14


@pytest.mark.parametrize("tag", [1, 3, 6, 8])
def test_deep_tiffs_are_turned_too(hospital, tag):
    values = np.asarray(stored(tag, "L")).astype(np.uint16) * 16
    for label in "ab":
        for i in range(2):
            tifffile.imwrite(
                hospital.path(f"{label}/{i}.tif"),
                values,
                extratags=[(274, "H", 1, tag, True)],
                metadata=None,
                photometric="minisblack",
            )
    _, made = hospital.take_in(intensity="0,4000")
    assert (made["train_images"][:, 0, :10] == 255).all()
    assert (made["train_images"][:, 0, 10:] == 0).all()


@pytest.mark.parametrize("tag", range(1, 9))
def test_upright_undoes_what_each_tag_means(tag):
    image = np.asarray(stored(tag, "L"))
    assert np.array_equal(upright(image, tag), TOP)
    assert np.array_equal(upright(image[..., None], tag)[..., 0], TOP)


def frames(hospital, name, count=3, **how):
    images = [Image.fromarray(noise(hash(name) % 1000 + i)) for i in range(count)]
    images[0].save(hospital.path(name), save_all=True, append_images=images[1:], **how)


@pytest.mark.parametrize(
    ("suffix", "how"),
    [("gif", {}), ("png", {}), ("webp", {"lossless": True}), ("tif", {}), ("tiff", {"big": True})],
)
def test_several_frames_are_refused_or_all_taken(hospital, suffix, how):
    how = {"big_tiff": True} if how.pop("big", False) else how
    for position, name in enumerate(("a/0", "a/1", "b/0", "b/1")):
        images = [Image.fromarray(noise(10 * position + i)) for i in range(3)]
        path = hospital.path(f"{name}.{suffix}")
        images[0].save(path, save_all=True, append_images=images[1:], **how)
    hospital.refused("holds 3 images", 'frames="each"', "4 files")
    report, made = hospital.take_in(frames="each")
    assert report.images == 12
    assert report.parts["train"].per_class == {"a": 3, "b": 3}
    # The frames of a file stay together, wherever samples are divided later.
    assert made["train_patients"].tolist() == [0, 0, 0, 2, 2, 2]
    if suffix in ("tif", "tiff", "png"):
        assert np.array_equal(made["train_images"][1, 0], noise(1))


def test_deep_pages_are_each_taken(hospital):
    for label in "ab":
        for i in range(2):
            stack = noise(i + 7 * (label == "b"), (4, 28, 28), 0, 4096, np.uint16)
            tifffile.imwrite(hospital.path(f"{label}/{i}.tif"), stack, photometric="minisblack")
    hospital.refused("holds 4 images", intensity="0,4095")
    report, _ = hospital.take_in(intensity="0,4095", frames="each")
    assert report.images == 16


@pytest.mark.parametrize("deep", [False, True])
def test_stained_channels_are_no_frames(hospital, deep):
    dtype = np.uint16 if deep else np.uint8
    for label in "ab":
        for i in range(2):
            tifffile.imwrite(
                hospital.path(f"{label}/{i}.tif"),
                noise(i, (3, 28, 28), 0, 200, dtype),
                imagej=True,
                metadata={"axes": "CYX", "mode": "composite"},
            )
    for how in ("refuse", "each"):
        hospital.refused("3 channels as separate images", frames=how, intensity="0,200")


def test_channels_of_an_ome_file_are_no_frames(hospital):
    for label in "ab":
        for i in range(2):
            tifffile.imwrite(
                hospital.path(f"{label}/{i}.ome.tif"),
                noise(i, (2, 28, 28), dtype=np.uint16),
                metadata={"axes": "CYX"},
            )
    hospital.refused("2 channels as separate images", frames="each", intensity="0,255")


def test_a_preview_in_a_tiff_is_no_frame(hospital):
    for label in "ab":
        for i in range(2):
            with tifffile.TiffWriter(hospital.path(f"{label}/{i}.tif")) as file:
                file.write(noise(i + 2 * (label == "b")), metadata=None, photometric="minisblack")
                file.write(noise(9, (14, 14)), subfiletype=1, metadata=None)
    report, made = hospital.take_in()
    assert report.images == 4
    assert np.array_equal(made["train_images"][0, 0], noise(0))


def test_a_cameras_second_picture_is_not_taken_but_said(hospital):
    for label in "ab":
        for i in range(2):
            one, two = (Image.fromarray(noise(i + k, (28, 28, 3))) for k in (0, 50))
            path = hospital.path(f"{label}/{label}{i}.jpg")
            one.save(path, "MPO", save_all=True, append_images=[two])
    report, _ = hospital.take_in()
    assert report.images == 4
    assert report.notes["JPEG with further pictures behind the first, as viewers show it"] == 4


def erased(mode: str) -> Image.Image:
    """Noise of which only a square in the middle, of value 128, is not transparent."""
    photo, alpha = noise(3, (28, 28, 3)), np.zeros((28, 28), np.uint8)
    photo[8:20, 8:20] = 128
    alpha[8:20, 8:20] = 255
    rgba = Image.fromarray(np.dstack([photo, alpha]))
    if mode == "LA":
        return Image.fromarray(np.dstack([photo[..., 0], alpha]), "LA")
    if mode == "P":
        return rgba.quantize(64)
    if mode == "RGB":  # one colour is declared transparent
        image = Image.fromarray(np.where(alpha[..., None] == 0, 255, photo).astype(np.uint8))
        image.info["transparency"] = (255, 255, 255)
        return image
    return rgba


WITH_HOLES = ["RGBA png", "LA png", "P png", "RGB png", "RGBA tif", "RGBA webp", "RGBA gif"]


@pytest.mark.parametrize("kind", WITH_HOLES)
@pytest.mark.parametrize(("ground", "value"), [("black", 0), ("white", 255)])
def test_what_was_erased_stays_erased(hospital, kind, ground, value):
    mode, suffix = kind.split()
    how = {"lossless": True} if suffix == "webp" else {}
    if mode == "RGB":
        how["transparency"] = (255, 255, 255)
    for name in ("a/0", "a/1", "b/0", "b/1"):
        erased(mode).save(hospital.path(f"{name}.{suffix}"), **how)
    hospital.refused("transparent pixels", transparency="refuse")
    report, made = hospital.take_in(transparency=ground)
    image = made["train_images"][0]
    assert (image[:, :8] == value).all()
    assert (np.abs(image[:, 8:20, 8:20].astype(int) - 128) <= 16).all()  # palettes are coarse
    assert report.notes[f"transparent pixels laid on {ground}"] == 4


def test_half_transparent_pixels_are_mixed(hospital):
    pixels = np.full((28, 28, 4), 200, np.uint8)
    pixels[..., 3] = 51  # a fifth
    for name in ("a/0", "a/1", "b/0", "b/1"):
        hospital.image(f"{name}.png", pixels)
    _, made = hospital.take_in()
    assert (made["train_images"] == 40).all()
    _, made = hospital.take_in(transparency="white")
    assert (made["train_images"] == 244).all()


def test_an_opaque_alpha_channel_changes_nothing(hospital):
    pixels = np.dstack([noise(1, (28, 28, 3)), np.full((28, 28), 255, np.uint8)])
    for name in ("a/0", "a/1", "b/0", "b/1"):
        hospital.image(f"{name}.png", pixels)
    report, made = hospital.take_in(transparency="refuse")
    assert np.array_equal(made["train_images"][0].transpose(1, 2, 0), pixels[..., :3])
    assert not report.notes


@pytest.mark.parametrize("suffix", ["gif", "jp2", "jfif", "jpe", "pgm", "dib", "j2k", "apng"])
def test_formats_by_their_less_known_names(hospital, suffix):
    kinds = {"gif": "GIF", "jp2": "JPEG2000", "jfif": "JPEG", "jpe": "JPEG", "pgm": "PPM"}
    kinds |= {"dib": "BMP", "j2k": "JPEG2000", "apng": "PNG"}
    for name in ("a/0", "a/1", "b/0", "b/1"):
        hospital.image(f"{name}.{suffix}", format=kinds[suffix])
    report, _ = hospital.take_in()
    assert report.images == 4


def test_content_decides_not_the_suffix(hospital):
    hospital.fill("a", "b", count=2)
    pixels = noise(5)
    hospital.image("a/00.jpg", pixels, format="PNG")
    hospital.image("a/IMG0001", noise(6), format="BMP")  # none at all
    hospital.image("b/1.2.840.113619", noise(7), format="TIFF")  # as PACS name files
    report, made = hospital.take_in()
    assert report.images == 7
    assert report.notes == {"PNG by content, .jpg by name": 1}
    assert np.array_equal(made["train_images"][0, 0], pixels)


@pytest.mark.parametrize("mode", ["CMYK", "1", "YCbCr"])
def test_other_colours(hospital, mode):
    for name in ("a/0", "a/1", "b/0", "b/1"):
        image = Image.new("RGB", (28, 28), (255, 255, 255)).convert(mode)
        image.save(hospital.path(f"{name}.{'png' if mode == '1' else 'jpg'}"))
    _, made = hospital.take_in()
    assert (made["train_images"] >= 254).all()
    assert made["train_images"].shape[1] == (1 if mode == "1" else 3)


def test_an_image_too_large_for_memory_is_not_decoded(hospital):
    hospital.fill("a", "b")
    raw = bytearray((hospital.root / "a/00.png").read_bytes())
    raw[16:24] = (12_000).to_bytes(4, "big") * 2  # the size it claims
    (hospital.root / "a/00.png").write_bytes(raw)
    hospital.refused("a/00.png")


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n", b"no image", b"\xff\xd8\xff\xe0"])
def test_a_damaged_file_is_named(hospital, content):
    hospital.fill("a", "b")
    (hospital.root / "b/03.png").write_bytes(content)
    hospital.refused(hospital.root / "b/03.png", "cannot be read as an image")


def test_all_damaged_files_are_counted_at_once(hospital):
    hospital.fill("a", "b", count=6)
    for name in ("a/01", "b/02", "b/03"):
        (hospital.root / f"{name}.png").write_bytes(b"no image")
    error = hospital.refused("3 files", "3 that cannot be read", hospital.root / "a/01.png")
    assert error.report.unusable == {"that cannot be read": 3}
    assert error.report.examples["that cannot be read"] == "a/01.png"
