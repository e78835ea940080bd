"""More than 8 bits: scaled by a stated window or refused, never cut to the high byte."""

import sys

import numpy as np
import pytest
import tifffile
from data.intake.conftest import noise, png16
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedadb_app.data.intake.intensity import Percentiles, Window, parse_intensity
from fedadb_app.errors import ConfigError

RAMP = np.repeat(np.linspace(0, 4095, 28)[None], 28, 0)
EIGHT = np.floor(RAMP * 255 / 4095 + 0.5).astype(np.uint8)  # by hand: 0 ... 255


def tiff(hospital, name, values, **how):
    tifffile.imwrite(hospital.path(name), values, **how)


def pair(hospital, write):
    """Two classes of two images each, all by one writer."""
    for label in "ab":
        for i in range(2):
            write(f"{label}/{i}")


def deep_values(dtype, channels):
    return np.repeat(RAMP.astype(dtype)[..., None], channels, 2)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["png", "contig", "separate", "big-endian", "deflate", "tiled"])
def test_every_16_bit_file_is_scaled_by_the_window(hospital, kind, channels):
    values = deep_values(np.uint16, channels)

    def write(name):
        if kind == "png":
            png16(hospital.path(f"{name}.png"), values)
            return
        photometric = "rgb" if channels == 3 else "minisblack"
        how = {
            "contig": {},
            "separate": {"planarconfig": "separate"},
            "big-endian": {"byteorder": ">"},
            "deflate": {"compression": "zlib"},
            "tiled": {"tile": (16, 16)},
        }[kind]
        data = values if channels == 3 else values[..., 0]
        if kind == "separate" and channels == 3:
            data = data.transpose(2, 0, 1)
        if kind == "separate" and channels == 1:
            how = {}
        tiff(hospital, f"{name}.tif", data, photometric=photometric, metadata=None, **how)

    pair(hospital, write)
    hospital.refused("more than 8 bits", "0 to 4095", "intensity=", "4 files")
    report, made = hospital.take_in(intensity="0,4095")
    assert made["train_images"].shape == (2, channels, 28, 28)
    for image in [*made["train_images"], *made["test_images"]]:
        for plane in image:
            assert np.array_equal(plane, EIGHT)
    assert "4 images of more than 8 bits: 0,4095" in report.made


@pytest.mark.parametrize(
    ("dtype", "values", "window", "expected"),
    [
        (np.int8, [-20, 0, 20], "-20,20", [0, 128, 255]),
        (np.int16, [-1000, -300, 400], "-1000,400", [0, 128, 255]),
        (np.float32, [0.0, 0.5, 1.0], "0,1", [0, 128, 255]),
        (np.uint32, [0, 50_000, 100_000], "0,1e5", [0, 128, 255]),
        (np.float64, [-1.0, 0.0, 3.0], "0,1", [0, 0, 255]),
    ],
)
def test_signed_and_real_values(hospital, dtype, values, window, expected):
    image = np.repeat(np.array(values, dtype), 28 * 28 // 3 + 1)[: 28 * 28].reshape(28, 28)
    pair(hospital, lambda name: tiff(hospital, f"{name}.tif", image, photometric="minisblack"))
    hospital.refused("more than 8 bits", np.dtype(dtype).name)
    _, made = hospital.take_in(intensity=window)
    assert sorted(set(made["train_images"].ravel().tolist())) == sorted(set(expected))


def test_white_is_zero_in_some_tiffs(hospital):
    pair(
        hospital,
        lambda name: tiff(
            hospital, f"{name}.tif", RAMP.astype(np.uint16), photometric="miniswhite"
        ),
    )
    _, made = hospital.take_in(intensity="0,4095")
    assert np.array_equal(made["train_images"][0, 0], 255 - EIGHT)


def test_eight_bits_are_taken_as_they_are_beside_deeper_ones(hospital):
    pixels = noise(1)
    for label in "ab":
        hospital.image(f"{label}/0.png", pixels if label == "a" else None)
        png16(hospital.path(f"{label}/1.png"), noise(2, (28, 28, 1), 0, 4096, np.uint16))
    _, made = hospital.take_in(intensity="0,4095")
    assert np.array_equal(made["train_images"][0, 0], pixels)


def test_transparency_of_16_bits(hospital):
    values = np.full((28, 28, 4), 4095, np.uint16)
    values[..., 3] = 0
    values[0, 0, 3] = 65535
    pair(hospital, lambda name: png16(hospital.path(f"{name}.png"), values))
    _, made = hospital.take_in(intensity="0,4095")
    assert (made["train_images"][0, :, 0, 0] == 255).all()
    assert made["train_images"][0].sum() == 3 * 255


@pytest.mark.parametrize("mode", ["pgm", "ppm", "jp2", "jp2-rgb"])
def test_what_pillow_would_shorten_is_refused(hospital, mode):
    def write(name):
        if mode == "jp2":
            image = Image.fromarray(RAMP.astype(np.uint16))
            image.save(hospital.path(f"{name}.jp2"))
        elif mode == "jp2-rgb":
            path = hospital.image(f"{name}.jp2", noise(0, (28, 28, 3)))
            raw = bytearray(path.read_bytes())
            depth = raw.index(b"\xff\x4f\xff\x51") + 42
            raw[depth : depth + 9 : 3] = bytes([11, 11, 11])  # as 12-bit cameras write
            path.write_bytes(raw)
        else:
            channels = 1 if mode == "pgm" else 3
            header = f"P{5 if channels == 1 else 6}\n# a comment\n28 28\n4095\n".encode()
            values = deep_values(">u2", channels).tobytes()
            hospital.path(f"{name}.{mode}").write_bytes(header + values)

    pair(hospital, write)
    hospital.refused("more than 8 bits", "save it as PNG or TIFF", intensity="0,4095")


@pytest.mark.parametrize(
    ("compression", "read"),
    [("packbits", True), ("tiff_deflate", True), ("tiff_adobe_deflate", True), ("tiff_lzw", False)],
)
def test_compressed_16_bit_tiffs(hospital, monkeypatch, compression, read):
    """What tifffile undoes by itself is read; of the rest it is said what would read it."""
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    values = [noise(i, (28, 28), 0, 4096, np.uint16) for i in range(4)]
    for i, pixels in enumerate(values):
        hospital.image(f"{'ab'[i % 2]}/{i}.tif", pixels, compression=compression)
    if read:
        _, made = hospital.as_node(intensity="0,4095")
        expected = [Window(0, 4095).to_8_bits(v) for i in (0, 1) for v in values[i::2]]
        found = made["train_images"][:, 0]
        assert (found == np.stack(expected)).all()
    else:
        hospital.refused(
            "4 with a compression that is not read",
            "LZW",
            "pip install imagecodecs",
            intensity="0,4095",
        )


def test_a_tiff_of_more_channels_than_colours_is_refused(hospital):
    values = noise(0, (28, 28, 5), 0, 4096, np.uint16)
    pair(hospital, lambda name: tiff(hospital, f"{name}.tif", values, photometric="minisblack"))
    hospital.refused("channels", intensity="0,4095")


def test_values_that_are_no_numbers_are_refused(hospital):
    values = np.full((28, 28), np.nan, np.float32)
    pair(hospital, lambda name: tiff(hospital, f"{name}.tif", values))
    hospital.refused("no numbers", intensity="0,1")


def test_percentiles_are_those_of_the_training_part_alone(hospital):
    """Training pixels are 100 … 883 in steps of one; the test part's 60000 must not count."""
    train = (100 + np.arange(784)).reshape(28, 28, 1)
    for label in "ab":
        png16(hospital.path(f"train/{label}/1.png"), train)
        png16(hospital.path(f"test/{label}/1.png"), np.full((28, 28, 1), 60000))
    report, made = hospital.take_in(intensity="0%,50%")
    assert "100,491.5 is black, white" in report.made  # the median of 784 values
    assert made["train_images"].min() == 0
    assert (made["test_images"] == 255).all()


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
    st.lists(st.floats(-2e6, 2e6), min_size=2, max_size=20),
)
def test_a_window_keeps_the_order_and_its_ends(low, width, values):
    window = Window(low, low + width)
    ends = window.to_8_bits(np.array([window.low, window.high]))
    assert ends.tolist() == [0, 255]
    shown = window.to_8_bits(np.sort(np.array(values)))
    assert (np.diff(shown.astype(int)) >= 0).all()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("", None),
        ("0,4095", Window(0, 4095)),
        ("-1000, 400", Window(-1000, 400)),
        ("1%,99%", Percentiles(1, 99)),
        (" 0.5% , 99.5%", Percentiles(0.5, 99.5)),
    ],
)
def test_intensities(text, parsed):
    assert parse_intensity(text) == parsed


@pytest.mark.parametrize("text", ["4095", "0,", "5,5", "9,1", "1%,99", "-1%,50%", "0,1e999", "a,b"])
def test_intensities_that_are_none(text):
    with pytest.raises(ConfigError, match="intensity="):
        parse_intensity(text)
