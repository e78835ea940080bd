"""A node on which all is well, with the credentials of its federation."""

import pytest
from node_check.superlinks import OWN_DATA

from fedadb_app.certificates import issue
from fedadb_app.config import RunConfig
from fedadb_app.node_check.settings import NodeSettings


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def creds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "creds"
    issue(folder, ["superlink.example.org"], ["hospital-a"], 365)
    return folder


@pytest.fixture
def settings(creds, quadrants):
    """A node on which all is well, but for the address of its SuperLink."""
    return NodeSettings(
        superlink="127.0.0.1:1",
        root_certificates=creds / "ca.crt",
        private_key=creds / "hospital-a.key",
        node_config={"data-path": quadrants},
        config=RunConfig(device="cpu", **OWN_DATA),
    )
