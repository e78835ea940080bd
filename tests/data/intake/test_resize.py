"""Any size and one or three channels, to the federation's: what fit, crop and stretch keep."""

import numpy as np
import pytest
from data.intake.conftest import noise
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.data.intake.resize import shaped

WAYS = ["fit", "crop", "stretch"]
sides = st.integers(1, 90)


@given(sides, sides, st.sampled_from([1, 3]), sides, sides, st.sampled_from([1, 3]))
@settings(max_examples=60)
@pytest.mark.parametrize("how", WAYS)
def test_every_shape_becomes_every_other(how, h, w, c, height, width, channels):
    made = shaped(noise(0, (h, w, c)), (channels, height, width), how)
    assert made.shape == (height, width, channels)
    assert made.dtype == np.uint8


@pytest.mark.parametrize("how", WAYS)
def test_an_image_of_the_shape_is_left_alone(how):
    pixels = noise(0, (28, 30, 3))
    assert shaped(pixels, (3, 28, 30), how) is pixels


def test_fit_keeps_everything_between_black_bars():
    wide = np.full((10, 40, 1), 200, np.uint8)
    made = shaped(wide, (1, 20, 20), "fit")[..., 0]
    assert (made[7:12] > 150).all()  # 5 rows of 20, in the middle
    assert (made[:7] == 0).all()
    assert (made[13:] == 0).all()


def test_crop_keeps_the_middle_without_bars():
    wide = np.zeros((10, 40, 1), np.uint8)
    wide[:, 15:25] = 200
    assert (shaped(wide, (1, 10, 10), "crop") == 200).all()
    tall = wide.transpose(1, 0, 2)
    assert (shaped(tall, (1, 10, 10), "crop") == 200).all()


def test_stretch_uses_every_pixel():
    halves = np.zeros((10, 40, 1), np.uint8)
    halves[:, 20:] = 200
    made = shaped(halves, (1, 20, 20), "stretch")[..., 0]
    assert (made[:, :8] == 0).all()
    assert (made[:, 12:] == 200).all()


@pytest.mark.parametrize("how", WAYS)
def test_shrinking_averages_instead_of_skipping(how):
    """A board of black and white pixels becomes grey, not black or white."""
    board = (np.indices((200, 200)).sum(0) % 2 * 255).astype(np.uint8)[..., None]
    made = shaped(board, (1, 20, 20), how)
    assert (np.abs(made.astype(int) - 127) <= 3).all()


def test_colour_to_grey_is_luminance_and_grey_to_colour_is_grey():
    red, green, blue = np.eye(3, dtype=np.uint8) * 255
    found = [
        int(shaped(np.full((1, 1, 3), c), (1, 1, 1), "fit")[0, 0, 0]) for c in (red, green, blue)
    ]
    assert found == [76, 150, 29]  # 255 x (0.299, 0.587, 0.114), ITU-R 601-2
    grey = noise(0, (5, 5, 1))
    assert (shaped(grey, (3, 5, 5), "fit") == grey).all()


def test_a_folder_of_all_sizes(hospital):
    for position, (h, w, c) in enumerate([(30, 40, 1), (500, 300, 3), (28, 28, 1), (9, 9, 3)]):
        for label in "ab":
            pixels = noise(2 * position + (label == "b"), (h, w, c))
            hospital.image(f"{label}/{position}.png", pixels[..., 0] if c == 1 else pixels)
    hospital.refused("is (3, 500, 300)", "0.png is (1, 30, 40)", "image-shape=", class_names=None)
    report, made = hospital.take_in(image_shape=(3, 64, 48), resize="crop")
    assert made["train_images"].shape[1:] == (3, 64, 48)
    assert report.sizes == {"30x40": 2, "500x300": 2, "28x28": 2, "9x9": 2}
    assert '8 images were resized (resize="crop")' in report.made


@pytest.mark.parametrize("side", [225, 320])
def test_above_224_pixels_the_memory_is_stated(hospital, side):
    hospital.fill("a", "b", count=2)
    report, made = hospital.take_in(image_shape=(1, side, side))
    assert made["train_images"].shape == (2, 1, side, side)
    line = next(line for line in report.lines() if line.startswith("made:"))
    assert f"{4 * side * side / 2**20:.1f} MiB" in line
