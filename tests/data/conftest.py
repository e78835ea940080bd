"""Fixtures of the tests of images."""

import pytest
import torchvision.datasets.utils as torchvision_utils

from fedadb_app.data.clients import partition_of
from fedadb_app.data.sources import open_dataset


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder of this test's own; nobody downloads."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torchvision_utils, "download_url", _no_download)
    open_dataset.cache_clear()
    yield tmp_path / "cache" / "fedadb"
    open_dataset.cache_clear()


def _no_download(*_args, **_kwargs):
    pytest.fail("a download was tried")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder for official files, and a cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    open_dataset.cache_clear()
    partition_of.cache_clear()
    yield tmp_path / "home"
    open_dataset.cache_clear()
    partition_of.cache_clear()
