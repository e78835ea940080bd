"""The SuperLink as the node sees it: each check returns what it found, or raises what to do."""

import socket
import ssl
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import metadata
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from cryptography import x509

from fedadb_app.errors import CredentialError, NodeError
from fedadb_app.flower_internals import Admission, ask_admission
from fedadb_app.node_check.machine import read_key
from fedadb_app.node_check.settings import NodeSettings

MOST_BEHIND, MOST_AHEAD = 305, 5
"""Seconds by which a node's clock may differ from its SuperLink's: beyond, Flower 1.42 refuses
its signature (``flwr/superlink/routers/fleet/node_auth.py``)."""

DATE_ERROR = 1
"""Seconds by which a clock read from an HTTP header may be wrong."""

_PATIENCE = 10.0  # seconds
_OUT_OF_DATE = {9, 10}  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and _CERT_HAS_EXPIRED
_HOST_MISMATCH = {62, 64}  # and its _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH


def check_superlink(settings: NodeSettings) -> str:
    """Shake hands over TLS, verifying the certificate as a SuperNode does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=settings.root_certificates.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise CredentialError(
            f"{settings.root_certificates} holds no certificate ({error}): take the ca.crt that "
            f"fedadb certificates wrote for the SuperLink"
        ) from error
    certificate, _ = _meet(settings.superlink, _trusting_anyone())
    end = certificate.not_valid_after_utc
    try:
        _meet(settings.superlink, context)
    except ssl.SSLCertVerificationError as error:
        raise CredentialError(_fault(certificate, error, settings)) from error
    return (
        f"{settings.superlink} answers over TLS, and only so: a SuperNode with --insecure waits "
        f"for ever; its certificate is valid until {end:%Y-%m-%d} "
        f"({(end - datetime.now(UTC)).days} days)"
    )


def check_clock(settings: NodeSettings) -> str:
    """Compare this machine's clock with the SuperLink's, which is the one that judges it."""
    _, ahead = _meet(settings.superlink, _trusting_anyone())
    side = "ahead of" if ahead > 0 else "behind"
    difference = f"about {abs(ahead):.0f} s {side} the SuperLink's clock"
    if not DATE_ERROR - MOST_BEHIND < ahead < MOST_AHEAD - DATE_ERROR:
        raise NodeError(
            f"{difference}, but Flower refuses a node that is {MOST_AHEAD} s ahead or "
            f"{MOST_BEHIND} s behind: let NTP set both clocks (timedatectl set-ntp true)"
        )
    return difference


def check_admission(settings: NodeSettings) -> str:
    """Ask the SuperLink whether it knows this node's public key, without joining."""
    key = read_key(settings.private_key)
    try:
        answer = ask_admission(settings.superlink, settings.root_certificates.read_bytes(), key)
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise NodeError(
            f"not asked, since there is no trusted connection ({error}): see the line superlink"
        ) from error
    if answer is Admission.KNOWN_KEY:
        return "the SuperLink knows this node's key"
    if answer is Admission.UNKNOWN_KEY:
        raise NodeError(
            f"the SuperLink does not know the public key of {settings.private_key}: its operator "
            f"admits it with flwr supernode register; a key once unregistered cannot return, make "
            f"a new one"
        )
    if answer is Admission.BAD_SIGNATURE:
        raise NodeError(
            "the SuperLink refuses this node's signature, which tells the time: see the line clock"
        )
    raise NodeError(
        f"the SuperLink answers with code {answer}: it must run Flower {metadata.version('flwr')}"
    )


def _trusting_anyone() -> ssl.SSLContext:
    """For what needs no trust: to tell whom one has met, and to compare clocks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _meet(superlink: str, context: ssl.SSLContext) -> tuple[x509.Certificate, float]:
    """Return the SuperLink's certificate, and by how many seconds this clock is ahead of its own.

    Like a SuperNode it uses httpx, and so the proxies that the environment names.

    Raises
    ------
    ssl.SSLCertVerificationError
        If `context` does not accept the certificate.
    NodeError
        If there is no answer, or not a SuperLink's.
    """
    try:
        with (
            httpx.Client(verify=context, timeout=_PATIENCE) as client,
            client.stream("GET", f"https://{superlink}/health") as response,
        ):
            now = time.time()
            if not response.is_success:
                raise ValueError(f"HTTP status {response.status_code}")
            date = parsedate_to_datetime(response.headers["date"])
            tls = response.extensions["network_stream"].get_extra_info("ssl_object")
            certificate = x509.load_der_x509_certificate(tls.getpeercert(True))
    except (httpx.ProtocolError, KeyError, ValueError) as error:
        raise NodeError(
            f"what answers at {superlink} over TLS is no SuperLink ({error}): check the port"
        ) from error
    except httpx.HTTPError as error:
        cause: BaseException = error
        while cause.__context__ is not None:  # httpx wraps what httpcore wraps
            cause = cause.__context__
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise cause from error
        raise NodeError(_why_unreachable(superlink, cause) + _proxy(superlink)) from error
    # The header counts whole seconds and is renewed once a second: on average a second old.
    return certificate, now - date.timestamp() - DATE_ERROR


def _why_unreachable(superlink: str, cause: BaseException) -> str:
    if isinstance(cause, socket.gaierror):
        return f"the name in {superlink} is unknown here: check its spelling and this machine's DNS"
    if isinstance(cause, ConnectionRefusedError):
        return (
            f"nothing listens at {superlink}: check the port, and that the SuperLink runs with "
            f"--host 0.0.0.0 (its default is 127.0.0.1)"
        )
    if isinstance(cause, TimeoutError):
        return (
            f"no answer from {superlink} within {_PATIENCE:.0f} s: a firewall may be in between, "
            f"or what listens there speaks no TLS"
        )
    if isinstance(cause, ssl.SSLError | ConnectionResetError):
        return (
            f"what listens at {superlink} speaks no TLS ({cause}): check the port, and that the "
            f"SuperLink runs with certificates, not with --insecure"
        )
    return f"{superlink} cannot be reached ({cause}): check the address, the network and firewalls"


def _proxy(superlink: str) -> str:
    """Say what else may be wrong where the environment puts a proxy in between."""
    proxy = getproxies().get("https")
    if proxy is None or proxy_bypass(superlink):
        return ""
    return f" (asked through the proxy {proxy} of HTTPS_PROXY; NO_PROXY lists hosts without it)"


def _fault(
    certificate: x509.Certificate, error: ssl.SSLCertVerificationError, settings: NodeSettings
) -> str:
    host = urlsplit(f"//{settings.superlink}").hostname
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if error.verify_code in _HOST_MISMATCH:
        return (
            f"the certificate of {settings.superlink} is for {_names(certificate)}, not for {host}:"
            f" name the SuperLink as the certificate does, or issue it with --host {host}"
        )
    if error.verify_code in _OUT_OF_DATE:
        return (
            f"the certificate of {settings.superlink} is valid from {start:%Y-%m-%d} to "
            f"{end:%Y-%m-%d}, but here it is {datetime.now(UTC):%Y-%m-%d}: renew it (fedadb "
            f"certificates), or set this machine's clock"
        )
    return (
        f"the certificate of {settings.superlink}, signed by {certificate.issuer.rfc4514_string()},"
        f" was not signed by the CA in {settings.root_certificates} ({error.verify_message}): take "
        f"the SuperLink's ca.crt; if it is that, something in between opens TLS connections"
    )


def _names(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "no host at all"
    return ", ".join(str(name.value) for name in names)
