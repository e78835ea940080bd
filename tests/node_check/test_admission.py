"""Whether a SuperLink knows a node's key."""

from dataclasses import replace

import pytest
from node_check.superlinks import fails, superlink

from fedadb_app.certificates import issue
from fedadb_app.node_check.superlink import (
    check_admission,
)

UNKNOWN = (412, {"code": 2004, "detail": "Failed to activate SuperNode."})
UNSIGNED = (401, {"detail": "Invalid SuperNode authentication"})


# --- admission ------------------------------------------------------------------------------


def test_a_node_that_the_superlink_knows(settings, creds):
    with superlink(creds) as address:
        said = check_admission(replace(settings, superlink=address))
    assert said == "the SuperLink knows this node's key"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (UNKNOWN, "the SuperLink does not know the public key of "),
        (UNSIGNED, "the SuperLink refuses this node's signature, which tells the time: see the"),
        (
            (404, {"detail": "Not Found"}),
            "the SuperLink answers with code 404: it must run Flower 1",
        ),
        ((412, {"code": 2002, "detail": "?"}), "the SuperLink answers with code 2002: it must run"),
    ],
)
def test_a_node_that_the_superlink_does_not_admit(settings, creds, answer, said):
    with superlink(creds, admission=answer) as address:
        found = fails(check_admission, replace(settings, superlink=address))
    assert found.startswith(said)


def test_no_key_is_shown_to_a_stranger(settings, creds, tmp_path):
    issue(tmp_path / "other", ["127.0.0.1"], [], 365)
    asked = []
    with superlink(tmp_path / "other", asked=asked) as address:
        said = fails(check_admission, replace(settings, superlink=address))
    assert said.startswith("not asked, since there is no trusted connection (")
    assert asked == []


def test_admission_without_a_certificate_or_key(settings, tmp_path):
    settings = replace(settings, root_certificates=tmp_path / "ca.crt")
    assert "see the line superlink" in fails(check_admission, settings)
    settings = replace(settings, private_key=tmp_path / "node.key")
    assert "is no readable OpenSSH private key" in fails(check_admission, settings)
