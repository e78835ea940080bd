"""PathMNIST in four artificial styles: each image in one of them, and what each style is."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, partition_of, server_dataset
from fedadb_app.data.datasets.styles import STYLED
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError

CLASSES, EACH = 9, 40
PHOTO, PAINTING, CARTOON, SKETCH = range(4)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A folder for official files, and a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_dataset.cache_clear()
    partition_of.cache_clear()
    yield tmp_path
    open_dataset.cache_clear()
    partition_of.cache_clear()


def archive(home, **changes):
    """A PathMNIST file whose validation part holds reddish smooth images, mixed up by class."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(CLASSES), EACH))
    coarse = rng.integers(40, 216, (len(labels), 5, 5, 3)).astype(np.uint8)
    coarse[..., 1] //= 2
    images = np.stack([np.asarray(Image.fromarray(c).resize((28, 28), 2)) for c in coarse])
    arrays = {"val_images": images, "val_labels": labels[:, None].astype(np.uint8)}
    for part in ("train", "test"):
        arrays |= {f"{part}_images": images[:2] * 0, f"{part}_labels": arrays["val_labels"][:2]}
    arrays |= changes
    path = home / "pathmnist.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return images.transpose(0, 3, 1, 2), labels


def test_every_validation_image_is_in_one_domain_of_which_a_fifth_is_the_test_part(home):
    _, labels = archive(home)
    data = open_dataset(STYLED, str(home))
    assert data.class_names[0] == "adipose"
    assert data.image_shape == (3, 28, 28)
    # 40 images a class: 10 in each of four domains, of which the 5th and the 10th are held out.
    assert np.bincount(data.test_labels).tolist() == [8] * CLASSES
    for domain in range(4):
        of_domain = data.train_labels[data.train_domains == domain]
        assert np.bincount(of_domain).tolist() == [8] * CLASSES
    assert len(data.train_labels) + len(data.test_labels) == len(labels)


def test_what_the_styles_are(home):
    images, labels = archive(home)
    data = open_dataset(STYLED, str(home))
    # By hand: of a class, every fourth image in order has a style; the first four of these
    # and the next but one are trained on.
    for label in range(CLASSES):
        of_class = images[labels == label]
        for domain in range(4):
            drawn = data.train_images[(data.train_labels == label) & (data.train_domains == domain)]
            original = of_class[domain::4][[0, 1, 2, 3, 5, 6, 7, 8]]
            if domain == PHOTO:
                assert np.array_equal(drawn, original)
            elif domain == CARTOON:
                assert set(np.unique(drawn)) <= {0, 64, 128, 192}
                assert abs(drawn.mean() + 32 - original.mean()) < 16  # 32: mean of what is cut
            elif domain == SKETCH:
                assert np.array_equal(drawn[:, :1].repeat(3, 1), drawn)
                assert np.median(drawn[..., 1:-1, 1:-1]) > original.mean()  # mostly white
            else:
                chroma = np.ptp(drawn.astype(int), axis=1), np.ptp(original.astype(int), axis=1)
                assert chroma[0].mean() > 1.3 * chroma[1].mean()


def test_clients_of_one_domain(home):
    archive(home)
    config = RunConfig(dataset=STYLED, data_dir=str(home), partition="domain")
    data = server_dataset(config)
    seen = []
    for k in range(20):
        local = client_data(config, PartitionClaim(k, 20), torch.device("cpu")).train
        assert set(data.train_domains[local.positions]) == {k // 5}
        assert int((local.class_counts > 0).sum()) == 2
        seen += local.positions.tolist()
    assert sorted(seen) == list(range(len(data.train_labels)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"val_images": None}, ["no array val_images"]),
        ({"val_labels": np.full((360, 1), 9, np.uint8)}, ["a label 9", "only 9 classes"]),
        ({"val_labels": np.zeros((3, 1), np.uint8)}, ["360 val_images but 3 val_labels"]),
        ({"val_images": np.zeros((360, 28, 28), np.uint8)}, ["grey", "RGB"]),
    ],
)
def test_a_file_that_is_no_pathmnist(home, changes, words):
    archive(home, **changes)
    with pytest.raises(DataError) as caught:
        open_dataset(STYLED, str(home))
    for word in (str(home / "pathmnist.npz"), *words):
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_does_not_download_it(home):
    with pytest.raises(DataError, match=f'dataset="{STYLED}": .*fedadb data {STYLED}'):
        open_dataset(STYLED, str(home))
