"""The certificates and keys of a federation, judged by those who read them: OpenSSL and Flower."""

import os
import ssl
import stat
from argparse import Namespace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.cli.supernode.register import try_load_public_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.cli.flower_supernode import _try_setup_client_authentication
from typer.testing import CliRunner

from fedadb_app import certificates
from fedadb_app.certificates import issue
from fedadb_app.cli.main import main
from fedadb_app.errors import CredentialError

HOSTS = ["superlink.example.org", "10.0.0.5"]


@pytest.fixture
def folder(tmp_path):
    """What a federation of two hospitals begins with."""
    issue(tmp_path / "creds", HOSTS, ["hospital-a", "hospital-b"], 365)
    return tmp_path / "creds"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "nodes", "said"),
    [
        (HOSTS, ["hospital-c"], "server.crt exists and is not overwritten; to renew it, move it"),
        ([], ["hospital-c", "hospital-a"], "hospital-a.key exists and is not overwritten"),
    ],
)
def test_nothing_is_overwritten_and_nothing_half_done(folder, hosts, nodes, said):
    before = contents(folder)
    with pytest.raises(CredentialError, match=said):
        issue(folder, hosts, nodes, 365)
    assert contents(folder) == before


def test_no_link_leads_a_secret_elsewhere(folder, tmp_path):
    (folder / "hospital-c.key").symlink_to(tmp_path / "public")
    with pytest.raises(CredentialError, match=r"hospital-c\.key exists"):
        issue(folder, [], ["hospital-c"], 365)
    assert not (tmp_path / "public").exists()


@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, existing):
    folder = tmp_path / "creds"
    if existing:
        folder.mkdir(0o700)
    opened = []
    real = os.open

    def full(path, *args, **kwargs):
        opened.append(path)
        if len(opened) == 4:
            raise OSError(28, "No space left on device", str(path))
        return real(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with pytest.raises(CredentialError, match=r"nothing was written.*No space left"):
            issue(folder, HOSTS, ["hospital-a"], 365)
    assert len(opened) == 4
    assert list(tmp_path.rglob("*")) == ([folder] if existing else [])


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "creds").mkdir()
    (tmp_path / "creds").chmod(0o750)
    with pytest.raises(CredentialError, match="open to other users of this machine; run: chmod"):
        issue(tmp_path / "creds", HOSTS, [], 365)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "creds").touch(0o600)
    with pytest.raises(CredentialError, match=r"nothing was written.*Not a directory"):
        issue(tmp_path / "creds", HOSTS, [], 365)


@pytest.mark.parametrize(
    "host",
    ["https://x.org", "x.org:8000", "-x.org", "a..b", "10.0.0.256", "*.x.org", "", "[::1]", "ä.de"],
)
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(CredentialError, match="is no DNS name and no IP address"):
        issue(tmp_path / "creds", [host], [], 365)
    assert not (tmp_path / "creds").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "ca", "server", ".x", "-x", "a b", "ä"])
def test_what_is_no_name_of_a_node_is_refused(tmp_path, name):
    with pytest.raises(CredentialError, match="is not allowed: use letters, digits"):
        issue(tmp_path / "creds", HOSTS, [name], 365)
    assert not (tmp_path / "creds").exists()


def test_nothing_to_do_is_said(tmp_path):
    with pytest.raises(CredentialError, match="--host, or nodes with --node"):
        issue(tmp_path / "creds", [], [], 365)


def pem(key, encryption=None):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())


def other_key():
    return ec.generate_private_key(ec.SECP384R1())


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ca.key", None, r"holds ca\.crt alone: ca\.crt and ca\.key are needed"),
        ("ca.crt", None, r"holds ca\.key alone"),
        ("ca.key", b"", r"ca\.key is no readable private key"),
        ("ca.crt", b"", r"ca\.crt is no readable certificate"),
        ("ca.key", lambda: pem(other_key()), "do not belong together"),
        ("ca.key", lambda: pem(rsa.generate_private_key(65537, 2048)), "no elliptic-curve key"),
        (
            "ca.key",
            lambda: pem(other_key(), BestAvailableEncryption(b"secret")),
            "no readable private key.*encrypted",
        ),
        ("server.key", b"-----BEGIN", r"server\.key is no readable private key"),
    ],
)
def test_a_folder_with_unusable_files_is_left_as_it_is(folder, name, content, said):
    (folder / "server.crt").unlink()
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content() if callable(content) else content)
    before = contents(folder)
    with pytest.raises(CredentialError, match=said):
        issue(folder, HOSTS, [], 365)
    assert contents(folder) == before


def test_a_certificate_does_not_outlive_its_ca(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "CA_DAYS", 10)
    issue(tmp_path / "creds", HOSTS, [], 10)
    (tmp_path / "creds" / "server.crt").unlink()
    with pytest.raises(CredentialError, match=r"outlives its CA, .*/ca\.crt, which ends on 20"):
        issue(tmp_path / "creds", HOSTS, [], 11)


# --- the command ----------------------------------------------------------------------------


def test_the_command_says_what_each_file_is_for(tmp_path):
    arguments = ["certificates", "--output", str(tmp_path / "c"), "--host", "h.org", "--node", "a"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    lines = dict(line.split(": ", 1) for line in result.output.splitlines())
    assert set(lines) == {str(path) for path in (tmp_path / "c").iterdir()}
    public = tmp_path / "c" / "a.pub"
    assert lines[str(public)].endswith(f"flwr supernode register {public} --name a")
    assert "for h.org, 127.0.0.1, ::1; until " in lines[str(tmp_path / "c" / "server.crt")]
    assert "PRIVATE" not in result.output

    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1
    assert "server.crt exists and is not overwritten" in again.output
    assert again.output.count("\n") == 1


def test_a_public_key_is_one_line_that_names_its_node(folder):
    line = (folder / "hospital-a.pub").read_text()
    assert line.startswith("ecdsa-sha2-nistp384 ")
    assert line.endswith(" hospital-a\n")
    key = certificates.load_pem_private_key((folder / "server.key").read_bytes(), None)
    assert (
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) not in line.encode()
    )
