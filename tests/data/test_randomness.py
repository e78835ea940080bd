"""Random numbers: a function of (seed, stream, indices), and of nothing else."""

import itertools

import numpy as np
import pytest
import torch

from fedadb_app.randomness import numpy_generator, secret_generator, torch_generator

LARGEST_SEED = 2**63 - 1  # config.py allows seeds below 2**63


def numpy_word(*key):
    return int(numpy_generator(*key).integers(2**63))


def torch_word(*key):
    return int(torch.randint(2**62, (1,), generator=torch_generator(*key)))


BOTH = pytest.mark.parametrize("word", [numpy_word, torch_word])


@BOTH
def test_the_same_key_gives_the_same_numbers(word):
    for key in [(0, "partition"), (7, "batches", 3, 99), (LARGEST_SEED, "anchors", 1)]:
        assert word(*key) == word(*key)


@BOTH
def test_no_two_keys_share_their_numbers(word):
    seeds = (0, 1, 2, 2**31, 2**32, 2**40 + 1, LARGEST_SEED)
    streams = ("batches", "agb", "weights", "partition")
    keys = list(itertools.product(seeds, streams, range(5), range(5)))
    words = {word(*key) for key in keys}
    assert len(words) == len(keys)


@BOTH
def test_rounds_and_clients_are_not_interchangeable(word):
    assert word(0, "batches", 1, 2) != word(0, "batches", 2, 1)


@BOTH
def test_global_seeds_do_not_matter_and_are_left_alone(word):
    np.random.seed(1)
    torch.manual_seed(1)
    first = word(5, "batches", 1)
    np.random.seed(2)
    torch.manual_seed(2)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert word(5, "batches", 1) == first
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_drawing_more_in_one_stream_leaves_another_as_it_was():
    batches, anchors = torch_generator(0, "batches", 1), torch_generator(0, "anchors", 1)
    torch.randn(1000, generator=anchors)
    expected = torch.randperm(50, generator=torch_generator(0, "batches", 1))
    assert torch.equal(torch.randperm(50, generator=batches), expected)


def test_a_seed_means_the_same_on_every_machine():
    # Recorded values: every client builds its own part of the partition, so a process (say, with
    # another PYTHONHASHSEED) that draws other numbers trains on the samples of its neighbours.
    assert numpy_generator(0, "partition").integers(1000, size=4).tolist() == [102, 962, 144, 451]
    assert torch_generator(0, "batches", 1, 2).initial_seed() == 9220128982838289288


def test_torch_numbers_are_drawn_on_the_cpu():
    # The same numbers, whichever device a client trains on.
    assert torch_generator(0, "batches").device == torch.device("cpu")


def test_numbers_of_neighbouring_keys_are_unrelated():
    draws = np.array([numpy_generator(0, "x", i).random(2000) for i in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 0.1  # 4.5 standard deviations of 1/sqrt(2000)
    assert abs(draws.mean() - 0.5) < 0.01


def test_secret_numbers_are_others_each_time():
    assert secret_generator().integers(2**63) != secret_generator().integers(2**63)
