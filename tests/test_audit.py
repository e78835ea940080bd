"""A node's audit log: what it holds, and that nothing in it can be changed unseen."""

import json

import numpy as np
import pytest
from fake_grid import node_id
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from helpers import own_data
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedadb_app import audit
from fedadb_app.app_hash import running_app_hash
from fedadb_app.audited import described
from fedadb_app.cli import console
from fedadb_app.cli.main import main
from fedadb_app.errors import DataError, StorageError


@pytest.fixture
def log(tmp_path):
    """A log of five entries."""
    for number in range(5):
        audit.append(tmp_path, {"event": "sent", "number": number, "name": "Ödem", "norm": 0.1})
    return tmp_path / audit.FILE


def faults(path) -> list[int]:
    return [line.number for line in audit.read(path) if line.fault]


# --- the chain ------------------------------------------------------------------------------


def test_what_was_appended_is_read_in_order(log):
    lines = list(audit.read(log.parent))
    assert [line.entry["number"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    assert faults(log) == []
    assert log.stat().st_mode & 0o077 == 0, "only its owner reads it"


@pytest.mark.parametrize("line", range(5))
def test_a_changed_line_is_found(log, line):
    lines = log.read_text().splitlines(keepends=True)
    lines[line] = lines[line].replace(f'"number": {line}', '"number": 9')
    log.write_text("".join(lines))
    assert faults(log) == [line + 1]


@pytest.mark.parametrize("line", range(4))
def test_a_missing_line_is_found_where_the_next_one_stands(log, line):
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:line] + lines[line + 1 :]))
    assert faults(log) == [line + 1]


def test_lines_in_another_order_are_found(log):
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], lines[2], lines[1], *lines[3:]]))
    assert faults(log) == [2, 3, 4]


def test_a_line_that_is_written_anew_with_its_hash_is_found_by_the_next(log, tmp_path):
    other = tmp_path / "other"
    for number in (0, 1, 9):
        audit.append(other, {"event": "sent", "number": number, "name": "Ödem", "norm": 0.1})
    lines = log.read_text().splitlines(keepends=True)
    lines[2] = (other / audit.FILE).read_text().splitlines(keepends=True)[2]
    log.write_text("".join(lines))
    assert faults(log) == [4]


def test_after_a_crash_in_mid_line_the_log_goes_on(log):
    whole = log.read_bytes()
    log.write_bytes(whole[:-20])
    assert faults(log) == [5]
    audit.append(log.parent, {"event": "sent", "number": 5})
    lines = list(audit.read(log))
    assert [line.number for line in lines if line.fault] == [5]
    assert lines[5].entry == {"event": "sent", "number": 5}


@settings(max_examples=150)
@given(st.data())
def test_no_byte_can_be_changed_unseen(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("log")
    for number in range(3):
        audit.append(folder, {"event": "sent", "number": number, "text": "a\u2028b\r\n"})
    log = folder / audit.FILE
    whole = bytearray(log.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 2))  # without the last line's end
    before = [line.entry for line in audit.read(log)]
    whole[place] = data.draw(st.integers(0, 255).filter(lambda b: b != whole[place]))
    log.write_bytes(bytes(whole))
    after = list(audit.read(log))
    assert any(line.fault for line in after) or [line.entry for line in after] == before


def test_a_disk_that_takes_nothing_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="audit log cannot be written"):
        audit.append(tmp_path / "file" / "log", {})
    with pytest.raises(DataError, match="cannot be read"):
        list(audit.read(tmp_path / "nowhere"))


# --- what a message is in it ----------------------------------------------------------------


def test_a_message_is_names_shapes_bytes_and_norms():
    content = RecordDict(
        {
            "arrays": ArrayRecord(
                {
                    "a": Array(np.array([[3.0, 4.0]], np.float32)),
                    "b": Array(np.array(12, np.int64)),
                }
            ),
            "metrics": MetricRecord({"num-examples": 5, "train-loss": 0.25}),
            "config": ConfigRecord({"round": 3, "blob": b"12345"}),
        }
    )
    said = described(content)
    assert said["tensors"]["a"]["shape"] == [1, 2]
    assert said["tensors"]["a"]["norm"] == 5.0
    assert said["norm"] == 13.0
    assert said["bytes"] == sum(t["bytes"] for t in said["tensors"].values()) > 16
    assert said["metrics"] == ["num-examples", "train-loss"]
    assert said["config"] == {"config": {"round": 3, "blob": "5 bytes"}}
    json.dumps(said)


# --- in a federation ------------------------------------------------------------------------


def audited_run(federation, tmp_path, **values):
    built = federation(2, **values)
    for node in built.grid.nodes.values():
        node["audit-dir"] = str(tmp_path / f"audit-{node['partition-id']}")
    built.run()
    return built


def test_a_run_is_in_the_log_of_each_node(federation, tmp_path):
    built = audited_run(federation, tmp_path, strategy="fedadb")
    entries = [line.entry for line in audit.read(tmp_path / "audit-0")]
    assert faults(tmp_path / "audit-0") == []
    assert [(e["event"], e.get("message")) for e in entries] == [
        ("run", None),
        ("received", "train"),
        ("sent", "train"),
        ("received", "train"),
        ("sent", "train"),
    ]
    assert entries[0]["app"] == running_app_hash()
    assert entries[0]["config"] == dict(built.grid.run_config)
    assert {e["node"] for e in entries} == {str(node_id(0))}
    model = built.strategy.global_model
    for entry in entries[1:]:
        shapes = {name: tuple(t["shape"]) for name, t in entry["tensors"].items()}
        assert shapes == {name: tuple(t.shape) for name, t in model.items()}
    assert [e["config"]["config"]["round"] for e in entries if e["event"] == "received"] == [1, 2]
    assert "train-loss" in entries[2]["metrics"]


def test_what_is_logged_as_sent_is_what_was_sent_noise_included(federation, tmp_path):
    built = audited_run(
        federation, tmp_path, privacy="local", **{"noise-multiplier": 9.0, "num-server-rounds": 1}
    )
    sent = [m for m in built.grid.received if m.metadata.src_node_id == node_id(1)][-1]
    entry = list(audit.read(tmp_path / "audit-1"))[-1].entry
    assert entry["event"] == "sent"
    assert entry["tensors"] == described(sent.content)["tensors"]


def test_a_refusal_is_logged_as_it_was_told(nodes_of_own_data):
    built, folder = nodes_of_own_data
    built.run()
    last = list(audit.read(folder))[-1].entry
    assert last["event"] == "refused"
    assert last["reason"] == "its data cannot be used; its own log says why"


@pytest.fixture
def nodes_of_own_data(federation, tmp_path):
    """Two hospitals, of which the second loses its file after it has joined."""
    nodes = {n: own_data(tmp_path / f"{n}.npz", [0, 1, 2, 3] * 3, seed=n) for n in (1, 2)}
    folder = tmp_path / "audit"
    nodes[2]["audit-dir"] = str(folder)
    values = {"dataset": "nodes", "classes": "a,b,c,d", "image-shape": "1x28x28"}
    built = federation(nodes=nodes, **values, **{"evaluate": "clients", "num-server-rounds": 1})
    (tmp_path / "2.npz").unlink()
    return built, folder


def test_what_cannot_be_logged_is_not_sent(federation, tmp_path, caplog):
    built = federation(2, **{"num-server-rounds": 1})
    (tmp_path / "file").write_text("")
    built.grid.nodes[node_id(1)]["audit-dir"] = str(tmp_path / "file")
    built.run()
    assert (built.rows[0]["clients"], built.rows[0]["failures"]) == ("1", "1")
    assert "client 1 failed: this node's audit log cannot be written" in caplog.text


# --- fedadb audit ---------------------------------------------------------------------------


def test_the_command_shows_a_log_and_ends_with_1_if_it_was_changed(
    federation, tmp_path, monkeypatch
):
    monkeypatch.setattr(console.out, "width", 200)  # of whichever terminal the tests run in
    audited_run(federation, tmp_path, **{"num-server-rounds": 1})
    path = tmp_path / "audit-0"
    whole = CliRunner().invoke(main, ["audit", str(path)])
    assert whole.exit_code == 0, whole.output
    assert "received" in whole.output
    assert "num-examples" in whole.output
    *_, last = audit.read(path)
    assert last.sha256 in whole.output
    log = path / audit.FILE
    log.write_text(log.read_text().replace('"train-loss"', '"secret"', 1))
    changed = CliRunner().invoke(main, ["audit", str(path)])
    assert changed.exit_code == 1
    assert "line 3: the chain is broken" in changed.output
    other = CliRunner().invoke(main, ["audit", str(path), "--run", "8"])
    assert "received" not in other.output


def test_a_hash_of_the_code_is_printed_and_of_nothing_else(tmp_path):
    shown = CliRunner().invoke(main, ["app-hash"])
    assert shown.output.strip() == running_app_hash()
    nothing = CliRunner().invoke(main, ["app-hash", "--app", str(tmp_path)])
    assert nothing.exit_code == 1
    assert "there is no client_app.py" in nothing.stderr
