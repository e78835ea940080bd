"""A node's private key."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from node_check.superlinks import fails

from fedadb_app.node_check import machine

# --- the key --------------------------------------------------------------------------------


EC_KEY = ec.generate_private_key(ec.SECP384R1())


def write_key(path, key, form=PrivateFormat.OpenSSH):
    path.touch(0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def test_a_key_of_ours_passes(settings):
    said = machine.check_key(settings)
    assert said.endswith("hospital-a.key is an OpenSSH key on secp384r1, closed to others")


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: None, "is no readable OpenSSH private key ([Errno 2]"),
        (
            lambda path: write_key(path, EC_KEY, PrivateFormat.PKCS8),
            "is no readable OpenSSH private key (",
        ),
        (
            lambda path: write_key(path, ed25519.Ed25519PrivateKey.generate()),
            "is no elliptic-curve",
        ),
    ],
)
def test_a_key_that_flower_would_not_read(settings, tmp_path, write, said):
    path = tmp_path / "node.key"
    write(path)
    found = fails(machine.check_key, replace(settings, private_key=path))
    assert found.startswith(f"{path} {said}")
    assert "fedadb certificates makes one" in found


# Of ssh-keygen -t ecdsa -N secret, for nobody; cryptography needs one more package to write such.
LOCKED_KEY = """
b3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHIAAAAGYmNyeXB0AAAAGAAAABD09cMjGH
5+pRxLDj9rlacfAAAAEAAAAAEAAABoAAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlz
dHAyNTYAAABBBOM7Ny4bHnpo2+O1Eaeo63WqDlF2QY1h5rOCdskauNxk6LDdMrstFAr8it
aYFJ7vn9u9hONrolxJk/s/qeusbUgAAACgZERlg5miXdp+xeTRmH4baMQ5WvCmFJlPXu1D
m8dTM3rotsgtMYRsyU/E4m8lI0ARN4G9kzSZKGgleMmEXn07mT32+yQZXwQPpv3ndDpHtN
72R+5PRG0ikJJumXEMHRAqnpPrtb6Fr5fS2uX8uwVgsfa5snjwH6HNpjCZUIhDnJOp6x/i
8sJ1Kx0ZhHv4GLO5DNE+8b2aFwLOufZKboRBbQ==
"""


def test_a_key_with_a_passphrase(settings, tmp_path):
    path = tmp_path / "node.key"
    kind = "OPENSSH PRIVATE KEY-----"
    path.write_text(f"-----BEGIN {kind}{LOCKED_KEY}-----END {kind}\n")
    assert "has a passphrase" in fails(machine.check_key, replace(settings, private_key=path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_open_to_others(settings, tmp_path, mode):
    path = tmp_path / "node.key"
    path.write_bytes(settings.private_key.read_bytes())
    path.chmod(mode)
    said = fails(machine.check_key, replace(settings, private_key=path))
    assert said == f"{path} is open to other users of this machine: chmod 600 {path}"
