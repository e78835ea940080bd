"""Feature skew by noise: more from client to client, and the same in each round."""

import numpy as np
import pytest
import torch

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, dataset_of, partition_of
from fedadb_app.data.noise import noise_of, with_noise
from fedadb_app.errors import ConfigError
from fedadb_app.settings import validate

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("clients", "expected"), [(1, [0]), (2, [0, 0.4]), (5, [0, 0.1, 0.2, 0.3, 0.4])]
)
def test_it_grows_evenly_from_none(clients, expected):
    assert [noise_of(k, clients, 0.4) for k in range(clients)] == pytest.approx(expected)


def test_its_deviation_is_as_stated():
    grey = np.full((50, 1, 28, 28), 128, np.uint8)  # nothing is cut off at 0.1
    change = with_noise(grey, 0.1, 0, 3).astype(float) - 128
    assert abs(change.std() / 255 - 0.1) < 0.001  # 39 200 pixels: five standard errors
    assert abs(change.mean() / 255) < 0.0026
    assert np.array_equal(with_noise(grey, 0.0, 0, 3), grey)


def test_no_pixel_wraps_round():
    for value in (0, 255):
        found = with_noise(np.full((9, 1, 28, 28), value, np.uint8), 0.3, 0, 0)
        assert (found == value).mean() > 0.4  # half of the noise is cut off
        assert abs(found.astype(int) - value).mean() < 40  # 0.4 of the deviation of 76


def pixels(data):
    return data.images[data.positions].numpy().astype(int)


def test_each_client_has_its_share_and_the_labels_stay(own_cache):
    config = RunConfig(partition="iid", feature_noise=0.2, evaluate="clients")
    plain = config.model_copy(update={"feature_noise": 0.0})
    deviations = []
    for k in range(4):
        data, before, again = (
            client_data(c, PartitionClaim(k, 4), CPU) for c in (config, plain, config)
        )
        change = []
        for part in ("train", "held_out"):
            now, old, same = (getattr(d, part) for d in (data, before, again))
            assert torch.equal(now.labels, old.labels)
            assert np.array_equal(pixels(now), pixels(same))
            change.append(np.abs(pixels(now) - pixels(old)).mean())
        assert abs(change[0] - change[1]) < 2  # what is held out is as noisy
        deviations.append(change[0])
    assert deviations[0] == 0
    assert deviations == sorted(set(deviations))
    rows = partition_of(config, 4).indices[2]
    clean = dataset_of(config).train_images[rows]  # the map that all share is untouched
    assert np.array_equal(clean, dataset_of(plain).train_images[rows])


def test_seeds_and_clients_have_noise_of_their_own():
    grey = np.full((1, 1, 28, 28), 128, np.uint8)
    found = {with_noise(grey, 0.1, seed, k).tobytes() for seed in (0, 1) for k in (0, 1)}
    assert len(found) == 4


def test_a_hospitals_own_images_get_none():
    own = {"classes": "a,b", "image-shape": "1x28x28"}
    with pytest.raises(ConfigError, match="own images are taken as they are"):
        validate(RunConfig, {**own, "feature-noise": 0.1})
    with pytest.raises(ConfigError, match="feature-noise"):
        validate(RunConfig, {"feature-noise": -0.1})
