"""fedadb check-node as a user calls it."""

import pytest
from flwr.cli.supernode.register import try_load_public_key
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from node_check.superlinks import connections, installed, superlink
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.node_check import machine
from fedadb_app.node_check.checks import CHECKS

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
