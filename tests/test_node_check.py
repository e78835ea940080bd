"""`fedadb check-node` against real TLS servers on loopback: what each line says, and when."""

import contextlib
import http.server
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections import namedtuple
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from importlib import metadata
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.superlink.routers.fleet import node_auth
from typer.testing import CliRunner

from fedadb_app import certificates
from fedadb_app.certificates import issue
from fedadb_app.cli.main import main
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError, FedADBError
from fedadb_app.node_check import machine
from fedadb_app.node_check import superlink as superlink_checks
from fedadb_app.node_check.checks import CHECKS
from fedadb_app.node_check.settings import NodeSettings
from fedadb_app.node_check.superlink import (
    MOST_AHEAD,
    MOST_BEHIND,
    check_admission,
    check_clock,
    check_superlink,
)

# --- SuperLinks, and what is none -----------------------------------------------------------


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def creds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "creds"
    issue(folder, ["superlink.example.org"], ["hospital-a"], 365)
    return folder


# What a SuperLink answers to one who would join with a heartbeat interval that it refuses.
KNOWN = (400, {"code": 2003, "detail": "Invalid heartbeat interval."})
UNKNOWN = (412, {"code": 2004, "detail": "Failed to activate SuperNode."})
UNSIGNED = (401, {"detail": "Invalid SuperNode authentication"})


@contextlib.contextmanager
def superlink(creds=None, status=200, clock=0.0, asked=None, admission=KNOWN):
    """An HTTP server that answers as a SuperLink does; over TLS where it has certificates.

    Its clock is ahead by `clock` seconds; what it is asked goes into `asked`.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(status, b"")

        def do_POST(self):
            self.answer(admission[0], json.dumps(admission[1]).encode())

        def answer(self, status, content):
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            if asked is not None:
                asked.append((self.path, dict(self.headers), body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def date_time_string(self, timestamp=None):
            return formatdate(time.time() + clock, usegmt=True)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if creds is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(creds / "server.crt", creds / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *args: None  # a refused handshake is no news here
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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


OWN_DATA = {
    "dataset": "nodes",
    "classes": "0,1,2,3",
    "image_shape": "1x28x28",
    "evaluate": "clients",
}


def fails(check, settings):
    with pytest.raises(FedADBError) as caught:
        check(settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


# --- the machine ----------------------------------------------------------------------------


def installed(monkeypatch, python=">=3.11", requires=("flwr>=1.42,<1.43", "torch>=2.5")):
    app = SimpleNamespace(metadata={"Requires-Python": python}, requires=list(requires))
    others = metadata.distribution
    monkeypatch.setattr(
        metadata, "distribution", lambda name: app if name == "fedadb-app" else others(name)
    )


def test_versions_in_range(settings, monkeypatch):
    installed(monkeypatch, requires=["flwr[simulation]>=1.42", "nosuch>=1; extra == 'dev'"])
    version = ".".join(map(str, sys.version_info[:3]))
    assert machine.check_versions(settings).startswith(f"Python {version}, flwr 1.42")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": ">=4"}, f"Python {sys.version_info[0]}.{sys.version_info[1]}"),
        ({"requires": ["flwr>=99"]}, "flwr 1.42.0 (>=99 is needed): run pip install ."),
        ({"requires": ["nosuchpackage>=1"]}, "nosuchpackage is missing (>=1 is needed)"),
    ],
)
def test_versions_out_of_range(settings, monkeypatch, changes, said):
    installed(monkeypatch, **changes)
    assert said in fails(machine.check_versions, settings)


def test_an_app_that_is_not_installed(settings, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert "the app is not installed here" in fails(machine.check_versions, settings)


def test_memory(settings, monkeypatch):
    available = namedtuple("available", "available")
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: available(3 * 2**30))
    assert machine.check_memory(settings) == "3.0 GiB free"
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: available(3 * 2**29))
    assert fails(machine.check_memory, settings) == (
        "1.5 GiB free, but 2 GiB are needed: end other programs"
    )


def test_disk(settings, monkeypatch, tmp_path):
    home = tmp_path / "not" / "yet"
    todo = "set FLWR_HOME to a folder elsewhere"
    monkeypatch.setenv("FLWR_HOME", str(home))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(3 * 2**30))
    assert f"3.0 GiB free for {home}; 3.0 GiB free for " in machine.check_disk(settings)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(2**29))
    assert fails(machine.check_disk, settings) == (
        f"0.5 GiB free for {home}, but 1 GiB are needed: {todo}"
    )
    monkeypatch.setattr(machine.os, "access", lambda path, mode: path != tmp_path)
    assert fails(machine.check_disk, settings) == (
        f"{home} is needed, but this user may not write to {tmp_path}: {todo}"
    )


def test_device(settings):
    assert machine.check_device(settings).startswith("cpu, ")
    config = RunConfig(device="cuda:99")
    assert 'device="cuda:99" is not available' in fails(
        machine.check_device, replace(settings, config=config)
    )


def test_data(settings):
    assert machine.check_data(settings) == (
        "400 training images of 28x28 pixels and 1 channel(s); "
        "per class: 0 100, 1 100, 2 100, 3 100; held out: 80"
    )
    settings = replace(settings, node_config={"data-path": "/nowhere/at/all"})
    assert "/nowhere/at/all" in fails(machine.check_data, settings)


def test_a_part_of_a_public_data_set(settings, quadrants):
    """The parts of an IID partition share out 400 images, 100 of each class."""
    config = RunConfig(dataset=quadrants, partition="iid", device="cpu")
    total = [0] * 4
    for part in range(3):
        node_config = {"partition-id": part, "num-partitions": 3}
        said = machine.check_data(replace(settings, config=config, node_config=node_config))
        for label, count in re.findall(r"(\d) (\d+)(?:, |;)", said.split("per class: ")[1]):
            total[int(label)] += int(count)
    assert total == [100] * 4


@pytest.mark.parametrize(
    ("node_config", "sentence"),
    [
        ({}, "this SuperNode has no data: start it with --node-config 'partition-id=0"),
        ({"partition-id": 0}, "this SuperNode has no data: start it with --node-config 'part"),
        ({"partition-id": 3, "num-partitions": 3}, "--node-config: partition-id=3 is not between"),
        ({"partition-id": "x", "num-partitions": 3}, "--node-config: partition-id=x and num-part"),
    ],
)
def test_a_node_that_names_no_part_of_a_public_data_set(settings, node_config, sentence):
    public = replace(settings, config=RunConfig(device="cpu"), node_config=node_config)
    assert fails(machine.check_data, public).startswith(sentence)


def test_a_node_that_names_no_data_of_its_own(settings):
    said = fails(machine.check_data, replace(settings, node_config={}))
    assert said.startswith('--node-config: data-path="" is not the absolute path of its own images')


# --- the command ----------------------------------------------------------------------------


def call(address, creds, key, data):
    return CliRunner().invoke(
        main,
        [
            "check-node",
            *("--superlink", address),
            *("--root-certificates", str(creds / "ca.crt")),
            *("--auth-supernode-private-key", str(key)),
            *("--node-config", f'data-path="{data}"'),
            *("-c", 'device="cpu" dataset="nodes" classes="0,1,2,3" image-shape="1x28x28"'),
            *("-c", 'evaluate="clients"'),
        ],
    )


@pytest.fixture
def fit_machine(monkeypatch, tmp_path):
    installed(monkeypatch)
    monkeypatch.setattr(machine, "NEEDED_MEMORY", 0)
    monkeypatch.setattr(machine, "NEEDED_DISK", 0)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))


def lines(output):
    return {words[1]: words[0] for line in output.splitlines() if (words := line.split())}


def test_a_machine_that_can_join(fit_machine, creds, quadrants):
    with superlink(creds) as address:
        result = call(address, creds, creds / "hospital-a.key", quadrants)
    assert result.exit_code == 0, result.output
    assert lines(result.output) == dict.fromkeys(CHECKS, "pass")


def test_every_check_is_made_whatever_fails(fit_machine, creds, quadrants):
    result = call("127.0.0.1:1", creds, "/nowhere/node.key", "/nowhere/[data]")
    assert result.exit_code == 1
    found = lines(result.output)
    failed = {"data", "key", "superlink", "clock", "admission"}
    assert {name for name, mark in found.items() if mark == "FAIL"} == failed
    assert {name for name, mark in found.items() if mark == "pass"} == (set(CHECKS) - failed)
    assert "/nowhere/[data]" in result.output
    assert "error: 5 of 9 checks failed" in result.output
    assert "Traceback" not in result.output


connections = []
sys.addaudithook(
    lambda event, arguments: (
        connections.append(arguments[1]) if event in {"socket.connect", "socket.sendto"} else None
    )
)


def test_nothing_leaves_the_machine_but_the_public_key(fit_machine, creds, quadrants):
    asked = []
    with superlink(creds, asked=asked) as address:
        connections.clear()
        call(address, creds, creds / "hospital-a.key", quadrants)
        assert {f"{host}:{port}" for host, port, *_ in connections} == {address}
    plain = {"host", "accept", "accept-encoding", "connection", "user-agent"}
    signed = {"flwr-public-key", "flwr-timestamp", "flwr-signature"}
    public_key = try_load_public_key(creds / "hospital-a.pub")
    joining = ActivateNodeRequest(public_key=public_key).SerializeToString()
    assert {path for path, _, _ in asked} == {"/health", "/v1/fleet/activate-node"}
    for path, headers, body in asked:
        names = {name.lower() for name in headers}
        if path == "/health":
            assert (body, names - plain) == (b"", set())
        else:
            assert body == joining
            assert names - plain == {*signed, "content-type", "content-length"}


def test_the_options_are_those_of_flower_supernode():
    """The engineer changes the name of the program, nothing else."""
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    actions = _parse_args_run_supernode()._actions
    theirs = {option for action in actions for option in action.option_strings}
    wide = {"COLUMNS": "200"}
    help_text = CliRunner().invoke(main, ["check-node", "--help"], env=wide).output
    for option in (
        "--superlink",
        "--root-certificates",
        "--auth-supernode-private-key",
        "--node-config",
    ):
        assert option in theirs
        assert option in help_text
