"""What fedadb certificates writes, and what it does when called again."""

import os
import ssl
import stat
from argparse import Namespace
from datetime import UTC, datetime, timedelta

import pytest
from certificates.folders import HOSTS, contents
from cryptography import x509
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication

from fedadb_app.certificates import issue


def handshake(folder, host, ca=None):
    """A TLS handshake in memory, as OpenSSL's strictest verification judges it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_verify_locations(ca or folder / "ca.crt")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    assert not ends


# --- what is in the files -------------------------------------------------------------------


def test_every_file_is_there(folder):
    pairs = {f"{name}.{end}" for name in ("hospital-a", "hospital-b") for end in ("key", "pub")}
    assert set(contents(folder)) == {"ca.crt", "ca.key", "server.crt", "server.key"} | pairs


# 127.0.0.1 and ::1 are where a SuperLink's own ServerApps call it.
@pytest.mark.parametrize("host", [*HOSTS, "127.0.0.1", "::1"])
def test_the_server_is_known_under_each_of_its_names(folder, host):
    handshake(folder, host)


@pytest.mark.parametrize("host", ["example.org", "x.superlink.example.org", "10.0.0.6"])
def test_the_server_is_not_known_under_another_name(folder, host):
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(folder, host)


def test_another_ca_does_not_vouch_for_the_server(folder, tmp_path):
    issue(tmp_path / "other", HOSTS, [], 365)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        handshake(folder, HOSTS[0], ca=tmp_path / "other" / "ca.crt")


def test_the_certificate_is_valid_now_and_for_as_long_as_asked(tmp_path):
    issue(tmp_path / "creds", HOSTS, [], 30)
    certificate = x509.load_pem_x509_certificate((tmp_path / "creds" / "server.crt").read_bytes())
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now - timedelta(hours=12)  # a clock that lags
    assert abs(certificate.not_valid_after_utc - now - timedelta(days=30)) < timedelta(minutes=5)


def test_flower_reads_the_nodes_keys(folder):
    """With the functions of `flower-supernode` and `flwr supernode register`."""
    arguments = Namespace(
        auth_supernode_private_key=str(folder / "hospital-a.key"), auth_supernode_public_key=None
    )
    _, public = _try_setup_client_authentication(arguments)
    registered = try_load_public_key(folder / "hospital-a.pub")
    assert public_key_to_bytes(public) == registered
    assert registered != try_load_public_key(folder / "hospital-b.pub")


def test_secrets_are_closed_to_others_from_the_first_moment(tmp_path, monkeypatch):
    def too_late(*args, **kwargs):
        raise AssertionError("a mode was changed after the file was there")

    for change in ("chmod", "fchmod", "lchmod"):
        monkeypatch.setattr(os, change, too_late, raising=False)
    mask = os.umask(0)
    try:
        issue(tmp_path / "creds", HOSTS, ["hospital-a"], 365)
    finally:
        os.umask(mask)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "creds").iterdir()}
    secret = {"ca.key", "server.key", "hospital-a.key"}
    assert {name for name, mode in modes.items() if mode == 0o600} == secret
    assert {mode for name, mode in modes.items() if name not in secret} == {0o644}
    assert stat.S_IMODE((tmp_path / "creds").stat().st_mode) == 0o700


# --- later ----------------------------------------------------------------------------------


def test_a_node_added_later_changes_nothing_else(folder):
    before = contents(folder)
    issue(folder, [], ["hospital-c"], 365)
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"hospital-c.key", "hospital-c.pub"}


def test_a_hospital_can_make_its_own_key_without_the_ca(tmp_path):
    issue(tmp_path / "own", [], ["hospital-c"], 365)
    assert set(contents(tmp_path / "own")) == {"hospital-c.key", "hospital-c.pub"}


def test_the_servers_certificate_is_renewed_under_the_same_ca(folder):
    (folder / "server.crt").rename(folder / "server.crt.old")
    before = contents(folder)
    issue(folder, ["new.example.org"], [], 365)
    after = contents(folder)
    assert {name: after[name] for name in before} == before  # keys included
    handshake(folder, "new.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(folder, HOSTS[0])


def test_the_servers_key_is_made_anew_if_it_is_moved_away_too(folder):
    old = (folder / "server.key").read_bytes()
    for name in ("server.crt", "server.key"):
        (folder / name).unlink()
    issue(folder, HOSTS, [], 365)
    assert (folder / "server.key").read_bytes() != old
    handshake(folder, HOSTS[0])
