"""Normalisation and augmentation per data set, against brute force."""

import numpy as np
import pytest
import torch

from fedadb_app.data.batches import LocalData
from fedadb_app.data.preparation import CENTRED, PAD
from fedadb_app.data.registry import preparation_of

CPU = torch.device("cpu")
CIFAR = preparation_of("cifar10")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pixels_of(count, shape=(3, 32, 32), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


# --- normalisation --------------------------------------------------------------------------


def test_normalise_is_the_formula_for_every_pixel_value():
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    expected = torch.tensor([((p / 255) - 0.5) / 0.5 for p in range(256)], dtype=torch.float64)
    result = CENTRED.normalise(pixels, CPU)
    assert result.dtype == torch.float32
    assert (result.double().flatten() - expected).abs().max() < 1e-6


def test_centred_pixels_are_bitwise_those_of_published_runs():
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(2, 3, 1, 1)
    published = pixels.to(torch.float32).mul_(1 / (255 * 0.5)).add_(-0.5 / 0.5)
    assert torch.equal(CENTRED.normalise(pixels, CPU), published)


@pytest.mark.parametrize("name", ["digits", "pathmnist", "/data/x.npz", "pacs", "nodes"])
def test_what_the_lineage_does_not_know_is_centred(name):
    assert preparation_of(name) == CENTRED
    assert [bound.flatten().tolist() for bound in CENTRED.valid_range] == [[-1.0], [1.0]]


@pytest.mark.parametrize(
    ("name", "mean", "std"),  # BASELINES.md, 11.4
    [
        ("cifar10", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("cifar100", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        ("cinic10", (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587)),
        ("svhn", (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    ],
)
def test_natural_images_are_normalised_per_channel(name, mean, std):
    pixels = pixels_of(4)
    moments = (np.array(values)[:, None, None] for values in (mean, std))
    expected = (pixels / 255 - next(moments)) / next(moments)
    found = preparation_of(name).normalise(torch.from_numpy(pixels), CPU).numpy()
    assert np.abs(found - expected).max() < 1e-5
    ends = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 1, 1)
    black, white = preparation_of(name).valid_range
    torch.testing.assert_close(
        preparation_of(name).normalise(ends, CPU)[:, :, 0, 0].T,
        torch.cat([black, white], 1)[:, :, 0],
        rtol=0,
        atol=1e-5,
    )


@pytest.mark.parametrize("preparation", [CENTRED, CIFAR])
def test_every_pixel_value_comes_back_from_model_input(preparation):
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).repeat(3, 1, 1)
    assert torch.equal(preparation.to_pixels(preparation.normalise(pixels, CPU)), pixels)


@pytest.mark.parametrize("preparation", [CENTRED, CIFAR])
def test_pixels_stay_as_they_are(preparation):
    pixels = torch.from_numpy(pixels_of(8))
    before = pixels.clone()
    preparation.normalise(pixels, CPU)
    preparation.augment(pixels, CPU, preparation.draw(8, 32, 32, generator()))
    assert torch.equal(pixels, before)


# --- augmentation ---------------------------------------------------------------------------


def by_hand(preparation, image, draw):
    """One image's augmentation, with NumPy's padding and plain slices."""
    flip, top, left, row, column = draw
    _, height, width = image.shape
    if preparation.crop:
        border = ((0, 0), (PAD, PAD), (PAD, PAD))
        image = np.pad(image, border, mode=preparation.crop)  # black where constant
        image = image[:, top : top + height, left : left + width]
    mean, std = (np.array(v)[:, None, None] for v in (preparation.mean, preparation.std))
    result = (image / 255 - mean) / std
    if flip:
        result = result[:, :, ::-1].copy()
    if preparation.cutout:
        half = preparation.cutout // 2
        rows = slice(max(row - half, 0), row + half)
        result[:, rows, max(column - half, 0) : column + half] = 0
    return result


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cinic10", "svhn", "pathmnist"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 28, 40)])
def test_augmentation_is_what_it_is_by_hand(name, shape):
    preparation = preparation_of(name)
    pixels = pixels_of(64, shape)
    draws = preparation.draw(64, *shape[1:], generator(1))
    found = preparation.augment(torch.from_numpy(pixels), CPU, draws).numpy()
    for image, result, draw in zip(pixels, found, draws.tolist(), strict=True):
        assert np.abs(result - by_hand(preparation, image, draw)).max() < 1e-5


@pytest.mark.parametrize("name", ["cifar10", "cinic10", "pathmnist"])
def test_a_batch_without_a_local_sample(name):
    preparation = preparation_of(name)
    draws = preparation.draw(0, 32, 32, generator())
    found = preparation.augment(torch.from_numpy(pixels_of(0)), CPU, draws)
    assert found.shape == (0, 3, 32, 32)


def test_every_place_is_drawn_about_equally_often():
    draws = CIFAR.draw(18_000, 32, 40, generator())
    for column, values in ((0, 2), (1, 9), (2, 9), (3, 32), (4, 40)):
        counts = torch.bincount(draws[:, column], minlength=values)
        assert len(counts) == values
        expected = 18_000 / values
        assert (counts - expected).abs().max() < 5 * expected**0.5


def test_medmnist_draws_nothing_but_the_flips_of_published_runs():
    one, two = generator(3), generator(3)
    draws = CENTRED.draw(50, 28, 28, one)
    assert torch.equal(draws[:, 0].bool(), torch.rand(50, generator=two) < 0.5)
    assert not draws[:, 1:].any()
    assert torch.equal(torch.rand(9, generator=one), torch.rand(9, generator=two))


def test_the_tables_rows():
    """Crop and cutout of BASELINES.md, 11.4."""
    names = ["cifar10", "cifar100", "cinic10", "svhn", "tissuemnist"]
    found = [(preparation_of(n).crop, preparation_of(n).cutout) for n in names]
    assert found == [("constant", 16), ("constant", 16), ("reflect", 0), ("constant", 0), (None, 0)]


def test_a_client_uses_its_data_sets_preparation_only_where_asked():
    pixels, labels = pixels_of(40), np.zeros(40, np.int64)
    plain, augmented = (
        LocalData.from_arrays(pixels, labels, np.arange(40), 2, CPU, on, CIFAR)
        for on in (False, True)
    )
    stored = CIFAR.normalise(torch.from_numpy(pixels), CPU)
    for batch in plain.epoch(16, generator()):
        assert torch.equal(batch.images, stored[batch.indices])
    for batch in augmented.epoch(16, generator()):
        expected = CIFAR.augment(torch.from_numpy(pixels)[batch.indices], CPU, batch.draws)
        assert torch.equal(batch.images, expected)
        assert not torch.equal(batch.images, stored[batch.indices])
