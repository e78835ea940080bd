"""The certificates and keys of a federation: a CA, the SuperLink's certificate, the nodes' keys.

They have the forms that Flower 1.42 reads: PEM for TLS; for a SuperNode an OpenSSH key pair on a
NIST curve (``flwr/supernode/cli/flower_supernode.py``, ``flwr/cli/supernode/register.py``).
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedadb_app.errors import CredentialError

CA_DAYS = 3650
"""How long a new CA is valid."""

_BACKDATED = timedelta(days=1)  # or a node whose clock is a little behind would refuse it today
# A SuperLink that listens on 0.0.0.0 or :: tells its own ServerApps to call it here, over TLS.
_LOOPBACK = ("127.0.0.1", "::1")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*(?![0-9]+$){_LABEL}")


@dataclass(frozen=True)
class Credential:
    """A file to write: where, what it is for, and whether only its owner may read it."""

    path: Path
    purpose: str
    content: bytes = field(repr=False)
    secret: bool = False


def issue(folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int) -> list[Credential]:
    """Make the SuperLink's certificate and key pairs for nodes; write all files, or none.

    A CA and a server's key that lie in the folder are used; nothing is ever overwritten.

    Parameters
    ----------
    folder : Path
        Made with mode 0700 if it does not exist.
    hosts : Sequence[str]
        DNS names and IP addresses of the SuperLink; empty for no certificate.
    nodes : Sequence[str]
        Names of the SuperNodes that get a key pair.
    days : int
        How long the SuperLink's certificate is valid.

    Returns
    -------
    list[Credential]
        The files written.

    Raises
    ------
    CredentialError
        If a file exists, a name is not allowed, or the folder is not fit for secrets.
    """
    if not hosts and not nodes:
        raise CredentialError("name the SuperLink with --host, or nodes with --node, or both")
    now = datetime.now(UTC).replace(microsecond=0)  # certificates count whole seconds
    try:
        if folder.exists() and open_to_others(folder):
            raise CredentialError(
                f"{folder} is open to other users of this machine; run: chmod 700 {folder}"
            )
        files = _server_files(folder, hosts, now, now + timedelta(days=days)) if hosts else []
        for name in dict.fromkeys(nodes):
            files += _node_files(folder, name)
        _write(folder, files)
    except FileExistsError as error:
        raise CredentialError(f"{error.filename} exists and is not overwritten") from error
    except OSError as error:
        raise CredentialError(f"nothing was written to {folder}: {error}") from error
    return files


def open_to_others(path: Path) -> bool:
    """Say whether other users of this machine may use a file (on Windows never)."""
    return os.name == "posix" and bool(path.stat().st_mode & 0o077)


# --- which files ----------------------------------------------------------------------------


def _server_files(
    folder: Path, hosts: Sequence[str], now: datetime, end: datetime
) -> list[Credential]:
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *_LOOPBACK))]
    target, key_file = folder / "server.crt", folder / "server.key"
    if target.exists():
        raise CredentialError(
            f"{target} exists and is not overwritten; to renew it, move it away and run this again "
            f"(the CA and {key_file.name} are kept)"
        )
    ca, ca_key, files = _authority(folder, now)
    key = _read_key(key_file) if key_file.exists() else ec.generate_private_key(ec.SECP384R1())
    if not key_file.exists():
        files.append(_secret(key_file, "the SuperLink's private key: keep it on its machine", key))
    if end > ca.not_valid_after_utc:
        raise CredentialError(
            f"a certificate until {end:%Y-%m-%d} outlives its CA, {folder / 'ca.crt'}, which ends "
            f"on {ca.not_valid_after_utc:%Y-%m-%d}: ask for fewer --days, or make a new CA in "
            f"another folder and give its ca.crt to every node"
        )
    builder = _builder("Flower SuperLink", key.public_key(), ca.subject, now, end, ca=False)
    certificate = (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA384())
    )
    shown = ", ".join(str(name.value) for name in names)
    purpose = f"the SuperLink's certificate, for {shown}; until {end:%Y-%m-%d}"
    return [*files, Credential(target, purpose, certificate.public_bytes(Encoding.PEM))]


def _authority(
    folder: Path, now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey, list[Credential]]:
    """Return the folder's CA and its key; a new one comes with its files."""
    target, key_file = folder / "ca.crt", folder / "ca.key"
    there = [path for path in (target, key_file) if path.exists()]
    if len(there) == 1:
        raise CredentialError(f"{folder} holds {there[0].name} alone: ca.crt and ca.key are needed")
    if there:
        key = _read_key(key_file)
        try:
            certificate = x509.load_pem_x509_certificate(target.read_bytes())
        except ValueError as error:
            raise CredentialError(f"{target} is no readable certificate: {error}") from error
        if certificate.public_key() != key.public_key():
            raise CredentialError(f"{target} and {key_file} do not belong together")
        return certificate, key, []
    key = ec.generate_private_key(ec.SECP384R1())
    end = now + timedelta(days=CA_DAYS)
    builder = _builder("fedadb CA", key.public_key(), _name("fedadb CA"), now, end, ca=True)
    certificate = builder.sign(key, hashes.SHA384())
    purpose = f"the CA's certificate: copy it to every node; until {end:%Y-%m-%d}"
    files = [
        Credential(target, purpose, certificate.public_bytes(Encoding.PEM)),
        _secret(key_file, "the CA's private key: needed only to renew; keep it offline", key),
    ]
    return certificate, key, files


def _node_files(folder: Path, name: str) -> list[Credential]:
    if not _NODE_NAME.fullmatch(name) or name in {"ca", "server"}:
        raise CredentialError(
            f'--node "{name}" is not allowed: use letters, digits, ".", "_" and "-" (not "ca" or '
            f'"server")'
        )
    key = ec.generate_private_key(ec.SECP384R1())
    public_file = folder / f"{name}.pub"
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return [
        _secret(
            folder / f"{name}.key",
            f"the private key of {name}: move it there",
            key,
            PrivateFormat.OpenSSH,
        ),
        Credential(
            public_file,
            f"its public key; admit it with: flwr supernode register {public_file} --name {name}",
            public + f" {name}\n".encode(),
        ),
    ]


def _write(folder: Path, files: Sequence[Credential]) -> None:
    """Create every file, with its mode from the first moment; on an error take all back."""
    with ExitStack() as undo:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            undo.callback(folder.rmdir)
        for file in files:
            opener = partial(os.open, mode=0o600 if file.secret else 0o644)
            with open(file.path, "xb", opener=opener) as output:
                undo.callback(file.path.unlink)
                output.write(file.content)
        undo.pop_all()


# --- what is in them ------------------------------------------------------------------------


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if _DNS_NAME.fullmatch(host):
            return x509.DNSName(host)
    raise CredentialError(
        f'--host "{host}" is no DNS name and no IP address (give it without https:// and port)'
    )


def _builder(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    now: datetime,
    end: datetime,
    *,
    ca: bool,
) -> x509.CertificateBuilder:
    """Begin a certificate with what RFC 5280 asks of every one."""
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .public_key(key)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end)
        .add_extension(
            x509.BasicConstraints(ca=ca, path_length=0 if ca else None),
            critical=True,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=not ca,
                key_cert_sign=ca,
                crl_sign=ca,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _secret(
    path: Path,
    purpose: str,
    key: ec.EllipticCurvePrivateKey,
    form: PrivateFormat = PrivateFormat.PKCS8,
) -> Credential:
    content = key.private_bytes(Encoding.PEM, form, NoEncryption())
    return Credential(path, purpose, content, secret=True)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:  # TypeError: it wants a passphrase
        raise CredentialError(f"{path} is no readable private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CredentialError(f"{path} was not made by this command: it is no elliptic-curve key")
    return key
