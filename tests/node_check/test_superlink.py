"""What a node is told of a SuperLink: its certificate, its clock, or that there is none."""

import contextlib
import re
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from flwr.superlink.routers.fleet import node_auth
from node_check.superlinks import fails, superlink

from fedadb_app import certificates
from fedadb_app.certificates import issue
from fedadb_app.errors import ConfigError
from fedadb_app.node_check import superlink as superlink_checks
from fedadb_app.node_check.superlink import (
    MOST_AHEAD,
    MOST_BEHIND,
    check_clock,
    check_superlink,
)


@contextlib.contextmanager
def listener(talk):
    """A bare TCP server that does with its connections what `talk` does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    taken.append(connection)
                    talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes the thread
            thread.join()
            for connection in taken:
                connection.close()


# --- the SuperLink's certificate ------------------------------------------------------------


def test_a_superlink_of_the_federation_passes(settings, creds):
    with superlink(creds) as address:
        said = check_superlink(replace(settings, superlink=address))
    end = datetime.now(UTC) + timedelta(days=365)
    assert said.startswith(f"{address} answers over TLS, and only so: a SuperNode with --insecure")
    assert f"its certificate is valid until {end:%Y-}" in said
    assert "(364 days)" in said


def test_a_certificate_for_another_name(settings, creds):
    with superlink(creds) as address:
        address = address.replace("127.0.0.1", "localhost")
        said = fails(check_superlink, replace(settings, superlink=address))
    assert f"{address} is for superlink.example.org, 127.0.0.1, ::1, not for localhost:" in said
    assert "issue it with --host localhost" in said


def test_a_certificate_of_another_ca(settings, creds, tmp_path):
    issue(tmp_path / "other", ["127.0.0.1"], [], 365)
    with superlink(tmp_path / "other") as address:
        said = fails(check_superlink, replace(settings, superlink=address))
    assert f"was not signed by the CA in {creds / 'ca.crt'} (" in said
    assert "signed by CN=fedadb CA" in said


@pytest.mark.parametrize(("shift", "valid"), [(-400, (-401, -35)), (40, (39, 405))])
def test_a_certificate_out_of_date(settings, tmp_path, monkeypatch, shift, valid):
    """Issued 400 days ago for a year, or 40 days hence."""

    class Then(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=shift)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "datetime", Then)
        issue(tmp_path / "then", ["127.0.0.1"], [], 365)
    with superlink(tmp_path / "then") as address:
        own_ca = tmp_path / "then" / "ca.crt"
        here = replace(settings, superlink=address, root_certificates=own_ca)
        said = fails(check_superlink, here)
    today = datetime.now(UTC)
    start, end = (f"{today + timedelta(days=days):%Y-%m-%d}" for days in valid)
    assert f"valid from {start} to {end}, but here it is {today:%Y-%m-%d}: renew it" in said


@pytest.mark.parametrize("content", [None, b"", b"no certificate", "ä".encode(), "key"])
def test_what_is_no_certificate_of_a_ca(settings, creds, tmp_path, content):
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_bytes((creds / "ca.key").read_bytes() if content == "key" else content)
    said = fails(check_superlink, replace(settings, root_certificates=path))
    assert said.startswith(f"{path} holds no certificate (")


# --- no SuperLink ---------------------------------------------------------------------------


def test_nothing_listens(settings):
    said = fails(check_superlink, settings)
    assert said.startswith("nothing listens at 127.0.0.1:1: check the port")


def test_what_listens_speaks_no_tls(settings):
    with superlink() as address:
        said = fails(check_superlink, replace(settings, superlink=address))
    assert said.startswith(f"what listens at {address} speaks no TLS (")
    assert "not with --insecure" in said


def test_what_listens_hangs_up(settings):
    with listener(lambda connection: connection.close()) as address:
        said = fails(check_superlink, replace(settings, superlink=address))
    assert said.startswith(f"what listens at {address} speaks no TLS (")


def test_what_listens_is_silent(settings, monkeypatch):
    monkeypatch.setattr(superlink_checks, "_PATIENCE", 0.3)
    with listener(lambda connection: None) as address:
        said = fails(check_superlink, replace(settings, superlink=address))
    assert said.startswith(f"no answer from {address} within 0 s: a firewall")


def test_the_name_is_unknown(settings, monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    said = fails(check_superlink, replace(settings, superlink="nowhere.invalid:8000"))
    assert said.startswith("the name in nowhere.invalid:8000 is unknown here")


def test_the_network_is_down(settings, monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    assert fails(check_superlink, settings) == (
        "127.0.0.1:1 cannot be reached ([Errno 101] Network is unreachable): check the address, "
        "the network and firewalls"
    )


def test_something_else_answers(settings, creds):
    with superlink(creds, status=404) as address:
        said = fails(check_superlink, replace(settings, superlink=address))
    assert said.startswith(f"what answers at {address} over TLS is no SuperLink (")
    assert "404" in said


def test_something_answers_no_http(settings, creds):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(creds / "server.crt", creds / "server.key")

    def talk(connection):
        with context.wrap_socket(connection, server_side=True) as tls:
            tls.sendall(b"220 mail.example.org ESMTP\r\n")

    with listener(talk) as address:
        said = fails(check_superlink, replace(settings, superlink=address))
    assert said.startswith(f"what answers at {address} over TLS is no SuperLink (")


def test_a_proxy_in_between_is_named(settings, monkeypatch):
    """A SuperNode uses it too."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    settings = replace(settings, superlink="superlink.example.org:8000")
    assert "(asked through the proxy http://127.0.0.1:9 of HTTPS_PROXY" in fails(
        check_superlink, settings
    )
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    said = fails(check_superlink, replace(settings, superlink="127.0.0.1:1"))
    assert "proxy" not in said


@pytest.mark.parametrize(
    "address",
    [
        "x.org",
        "https://x.org:80",
        "x.org:80/v1",
        "x:y",
        "x:0",
        "x:70000",
        ":80",
        "ä..de:80",
        "[x]:80",
    ],
)
def test_what_is_no_address(settings, address):
    with pytest.raises(ConfigError, match="expected host:port, without https://"):
        replace(settings, superlink=address)


# --- the clock ------------------------------------------------------------------------------


def test_the_tolerance_is_flowers():
    assert MOST_AHEAD == node_auth.SYSTEM_TIME_TOLERANCE
    assert MOST_BEHIND == (node_auth.TIMESTAMP_TOLERANCE + node_auth.SYSTEM_TIME_TOLERANCE)


@pytest.mark.parametrize(
    ("clock", "said"),
    [(0, "about [01] s"), (200, r"about (199|200|201) s behind"), (-1.5, "about [123] s ahead of")],
)
def test_a_clock_within_the_tolerance(settings, creds, clock, said):
    with superlink(creds, clock=clock) as address:
        found = check_clock(replace(settings, superlink=address))
    assert re.match(said, found), found


@pytest.mark.parametrize(("clock", "side"), [(310, "behind"), (-9, "ahead of"), (-9e7, "ahead of")])
def test_a_clock_that_flower_would_refuse(settings, creds, clock, side):
    with superlink(creds, clock=clock) as address:
        said = fails(check_clock, replace(settings, superlink=address))
    assert f"s {side} the SuperLink's clock, but Flower refuses" in said
    assert "5 s ahead or 305 s behind" in said


def test_clocks_are_compared_although_the_certificate_is_not_accepted(settings, creds, tmp_path):
    """A wrong clock can be the very reason."""
    issue(tmp_path / "other", ["x.org"], [], 365)
    with superlink(tmp_path / "other") as address:
        assert "about" in check_clock(replace(settings, superlink=address))
