"""CINIC-10 and PACS, small, in the folders that a user unpacks."""

import numpy as np
import pytest
import torch
from official_formats import (
    PACS_CLASSES,
    make_cinic10,
    make_pacs,
    refused,
    reopen,
    same,
    save_image,
)

from fedadb_app.config import RunConfig
from fedadb_app.data.clients import PartitionClaim, client_data, partition_of, server_dataset
from fedadb_app.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("home")


def test_cinic10_trains_on_the_training_part_alone_as_the_lineage(home):
    made, classes = make_cinic10(home)
    data = reopen("cinic10", home)
    assert data.class_names == classes
    same(data.train_images, made["train"].transpose(0, 3, 1, 2))
    same(data.test_images, made["test"].transpose(0, 3, 1, 2))
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.test_labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_grey_png_among_coloured_ones_is_made_rgb(home):
    made, _ = make_cinic10(home)
    grey = made["train"][0][:, :, 0]
    save_image(home / "cinic10" / "train" / "airplane" / "0.png", grey)
    assert np.array_equal(reopen("cinic10", home).train_images[0], np.stack([grey] * 3))


@pytest.mark.parametrize(("name", "folder"), [("cinic10", "cinic10"), ("pacs_64", "pacs")])
@pytest.mark.parametrize("download", [True, False])
def test_what_is_not_downloaded_is_asked_for(home, name, folder, download):
    refused(name, home, home / folder, "not downloaded", download=download)


def test_pacs_images_have_their_class_and_their_domain(home):
    make_pacs(home)
    data = reopen("pacs_64", home)
    assert data.class_names == PACS_CLASSES
    assert data.image_shape == (3, 64, 64)
    assert np.array_equal(data.train_images[:, 0, 0, 0], 60 * data.train_domains)
    for part in ("train", "test"):
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert np.array_equal(images[:, 1, 5, 5], 60 * labels)
    # A fifth of each class of each domain is the test part's: 4 of 20; of the dogs 4, 5, 6, 7.
    for d in range(4):
        labels = data.test_labels[data.test_images[:, 0, 0, 0] == 60 * d]
        assert np.bincount(labels).tolist() == [4 + d, 4, 4, 4]


def test_pacs_has_inceptions_size_unless_another_is_named(home):
    make_pacs(home, images=2)
    assert reopen("pacs", home).image_shape == (3, 224, 224)
    assert reopen("pacs_128", home).image_shape == (3, 128, 128)


def test_a_domain_without_a_class(home):
    make_pacs(home, images=2)
    for file in (home / "pacs" / "photo" / "guitar").iterdir():
        file.unlink()
    (home / "pacs" / "photo" / "guitar").rmdir()
    with pytest.raises(DataError, match=r"photo has the class folders .*every domain"):
        reopen("pacs_64", home)


def test_clients_of_pacs_hold_their_share_of_one_domain(home):
    make_pacs(home)
    config = RunConfig(
        dataset="pacs_64", data_dir=str(home), partition="domain", classes_per_client=2
    )
    data = server_dataset(config)
    seen = []
    for k in range(8):
        local = client_data(config, PartitionClaim(k, 8), torch.device("cpu")).train
        assert set(data.train_domains[local.positions]) == {k // 2}
        assert int((local.class_counts > 0).sum()) == 2
        seen += local.positions.tolist()
    assert sorted(seen) == list(range(len(data.train_labels)))  # 2 clients x 2 classes: all 4


def test_other_data_sets_have_no_domains():
    config = RunConfig(dataset="digits", partition="domain")
    with pytest.raises(ConfigError, match=r'partition="domain" needs .*dataset="digits"'):
        partition_of(config, 4)
