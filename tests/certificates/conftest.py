"""A folder of certificates as a federation of two hospitals begins with it."""

import pytest
from certificates.folders import HOSTS

from fedadb_app.certificates import issue


@pytest.fixture
def folder(tmp_path):
    """What a federation of two hospitals begins with."""
    issue(tmp_path / "creds", HOSTS, ["hospital-a", "hospital-b"], 365)
    return tmp_path / "creds"
