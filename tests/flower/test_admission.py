"""Who may join a SuperLink with TLS and node authentication, and what the others are told.

Where Flower 1.42 does not say on a node's side what is wrong, `fedadb check-node` must.
"""

import json

import pytest
from typer.testing import CliRunner

from fedadb_app.cli.main import main

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def link(guarded):
    """It has registered hospital-a, and not hospital-b, who has a key too."""
    public_key = str(guarded.credentials / "hospital-a.pub")
    done = guarded.flwr("supernode", "register", public_key, "test", "--name", "hospital-a")
    assert done.returncode == 0, done.stdout + done.stderr
    return guarded


def trust(link):
    return f"--root-certificates={link.credentials / 'ca.crt'}"


def key(link, hospital):
    return f"--auth-supernode-private-key={link.credentials / hospital}.key"


def refused(link, *options, host="127.0.0.1"):
    """Start a SuperNode that must give up; return what it says, and what the SuperLink says."""
    log = link.home / "superlink-1.log"
    before = len(log.read_text())
    said = link.refused_supernode(f"--superlink={host}:{link.port}", *options)
    assert "SuperNode ID" not in said  # which it is told when it is let in
    return said, log.read_text()[before:]


def checked(link, hospital="hospital-a", host="127.0.0.1"):
    """Call `fedadb check-node`; return its lines by name, without the columns' blanks."""
    arguments = ["check-node", f"--superlink={host}:{link.port}", trust(link), key(link, hospital)]
    arguments.append("--node-config=partition-id=0 num-partitions=1")
    result = CliRunner().invoke(main, arguments)
    lines = [line.split(maxsplit=2) for line in result.output.splitlines()]
    return result.exit_code, {name: (mark, text) for mark, name, text in lines}


def statuses(link):
    """Ask the SuperLink for the state of every SuperNode that it knows."""
    done = link.flwr("supernode", "list", "test", "--format", "json")
    return [node["status"] for node in json.loads(done.stdout)["nodes"]]


def test_a_registered_key_is_admitted_and_trains(link):
    """The ServerApp, too, calls the SuperLink over TLS, at a loopback address."""
    with link.supernode(0, 1, trust(link), key(link, "hospital-a")):
        outcome = link.run('strategy="fedavg" num-server-rounds=1 local-epochs=1')
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("clients") == ["1"]


def test_a_check_of_a_registered_key_changes_nothing(link):
    before = statuses(link)
    _, lines = checked(link)
    assert lines["admission"] == ("pass", "the SuperLink knows this node's key")
    assert {lines[name][0] for name in ("key", "superlink", "clock")} == {"pass"}
    assert statuses(link) == before
    assert len(before) == 1
    assert before[0] in {"registered", "offline"}


def test_an_unregistered_key_is_refused(link):
    node, superlink = refused(link, trust(link), key(link, "hospital-b"))
    assert "[code: 2004] Failed to activate SuperNode." in node  # no word of the key
    assert "No SuperNode found with the given public key." in superlink
    code, lines = checked(link, "hospital-b")
    assert code == 1
    mark, said = lines["admission"]
    assert mark == "FAIL"
    assert said.startswith("the SuperLink does not know the public key of ")


def test_a_node_without_a_key_is_refused(link):
    node, superlink = refused(link, trust(link))
    assert "All SuperNodes must be registered via the CLI." in node
    assert "[/v1/fleet/register-node][ApiError:2001] Attempted to register SuperNode" in superlink


def test_a_node_without_tls_is_refused(link):
    node, superlink = refused(link, "--insecure", key(link, "hospital-a"))
    assert "SuperNode authentication requires a secure TLS connection with the SuperLink." in node
    assert superlink == ""  # the SuperNode has not called


def test_a_node_without_tls_and_key_gets_no_answer(link):
    node, superlink = refused(link, "--insecure", "--max-wait-time=1")
    assert "Server disconnected without sending a response." in node  # no word of TLS
    assert superlink == ""
    mark, said = checked(link)[1]["superlink"]
    assert mark == "pass"
    assert "answers over TLS, and only so: a SuperNode with --insecure waits for ever" in said


def test_a_server_certificate_for_another_name_is_refused(link):
    node, superlink = refused(link, trust(link), key(link, "hospital-a"), host="localhost")
    assert "Hostname mismatch, certificate is not valid for 'localhost'." in node
    assert superlink == ""  # uvicorn does not mention a handshake that the other side breaks off
    code, lines = checked(link, host="localhost")
    assert code == 1
    mark, said = lines["superlink"]
    assert mark == "FAIL"
    assert "is for superlink.example.org, 127.0.0.1, ::1, not for localhost: name the" in said
