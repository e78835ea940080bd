"""Fixtures of the tests of images."""

import pytest
import torchvision.datasets.utils as torchvision_utils


@pytest.fixture
def cache(own_cache, monkeypatch):
    """An empty cache folder of this test's own; nobody downloads."""
    monkeypatch.setattr(torchvision_utils, "download_url", _no_download)
    return own_cache


def _no_download(*_args, **_kwargs):
    pytest.fail("a download was tried")


@pytest.fixture
def home(own_cache, tmp_path):
    """A folder for official files, and a cache of this test's own."""
    return tmp_path / "home"
