"""What fedadb certificates refuses, in one sentence each, and the command."""

import os

import pytest
from certificates.folders import HOSTS, contents
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from typer.testing import CliRunner

from fedadb_app import certificates
from fedadb_app.certificates import issue
from fedadb_app.cli.main import main
from fedadb_app.errors import CredentialError

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
