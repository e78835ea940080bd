"""What every data set of the registry promises, as far as its files are at hand."""

import numpy as np
import pytest

from fedadb_app.config import RunConfig
from fedadb_app.data.arrays import LARGEST_SIDE, SMALLEST_SIDE
from fedadb_app.data.clients import partition_of
from fedadb_app.data.registry import DATASETS, preparation_of
from fedadb_app.data.sources import open_dataset
from fedadb_app.errors import DataError

NAMED = [name for name in DATASETS if DATASETS[name].locate is not None]
each = pytest.mark.parametrize("name", NAMED)


@each
def test_what_is_said_beforehand_can_be(name):
    entry = DATASETS[name]
    assert entry.title
    assert entry.paper
    channels, *sides = entry.image_shape
    assert channels in (1, 3)
    assert min(sides) >= SMALLEST_SIDE
    assert max(sides) <= LARGEST_SIDE
    assert entry.num_classes >= 2
    preparation = preparation_of(name)
    assert len(preparation.mean) == len(preparation.std) in (1, channels)


@each
def test_its_images_or_one_sentence(name, tmp_path):
    """With an empty data-dir: what needs files says so, and the rest is what was said."""
    entry = DATASETS[name]
    try:
        data = open_dataset(name, str(tmp_path))
    except DataError as error:
        refusal = str(error)
        assert f'"{name}"' in refusal
        assert "\n" not in refusal
        assert list(tmp_path.iterdir()) == []
        return
    assert (data.image_shape, data.num_classes) == (entry.image_shape, entry.num_classes)
    for part in ("train", "test"):
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
        assert len(images) == len(labels)
        assert np.unique(labels).tolist() == list(range(entry.num_classes))
    parts = partition_of(RunConfig(dataset=name, data_dir=str(tmp_path)), 3).indices
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(data.train_labels)))


def test_only_nodes_have_images_where_nobody_else_has():
    with pytest.raises(DataError, match="the nodes' own"):
        open_dataset("nodes", "")
