"""MLflow on loopback, and W&B without a network: a run read back from where it was handed to.

A full MLflow (the server) need not be in this environment: ``FEDADB_MLFLOW`` may name the
program `mlflow` of another one.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from report_pages import ACCURACIES, set_status, write_run

from fedadb_app.runs.series import cells

SERVER = os.environ.get("FEDADB_MLFLOW") or (find_spec("flask") and shutil.which("mlflow"))

pytestmark = pytest.mark.slow
with_mlflow = pytest.mark.skipif(
    not (SERVER and find_spec("mlflow")), reason="MLflow, an extra, or its server is not installed"
)
with_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="W&B, an extra, is not there")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of an MLflow server of this test's own."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stores = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    stores += ["--artifacts-destination", str(folder / "artifacts"), "--workers", "1"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [SERVER, "server", "--host", "127.0.0.1", "--port", str(port), *stores],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=1)
                    break
                except OSError:
                    assert process.poll() is None, (folder / "log").read_text()
                    time.sleep(0.1)
            yield address
        finally:
            os.killpg(process.pid, 15)
            process.wait(30)


@with_mlflow
def test_mlflow_has_a_run_once_and_whole(run, call, server, tmp_path):
    import mlflow

    (run / "model.safetensors").write_bytes(b"weights")
    where = ["--to", "mlflow", "--tracking-uri", server, "--experiment", "a study"]
    code, output = call(run, *where, "--models")
    assert code == 0, output
    address = output.removeprefix("logged: ").strip()
    run_id = address.rpartition("/")[2]
    client = mlflow.MlflowClient(server)
    experiment = client.get_experiment_by_name("a study").experiment_id
    assert address == f"{server}/#/experiments/{experiment}/runs/{run_id}"

    found = client.get_run(run_id)
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["strategy"] == "fedadb"
    assert found.data.params["fedadb.anchors-per-class"] == "1"
    assert found.data.params["select-by"] == ""
    assert found.data.tags["seed"] == "3"
    assert found.data.metrics["summary/final_accuracy"] == ACCURACIES[-1]
    expected = {}
    for server_round, tag, value in cells(run):
        expected.setdefault(tag, {})[server_round] = value
    for tag, points in expected.items():
        history = {m.step: m.value for m in client.get_metric_history(run_id, tag)}
        assert history == points, tag
    kept = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert {"report.html", "config.toml", "rounds.csv", "model.safetensors"} <= kept
    page = Path(client.download_artifacts(run_id, "rounds.csv", str(tmp_path)))
    assert page.read_bytes() == (run / "rounds.csv").read_bytes()

    code, output = call(run, *where)  # a second time
    assert (code, output.count("\n")) == (1, 1)
    assert f"has this run already, as {run_id}" in output
    assert len(client.search_runs([experiment])) == 1
    client.delete_run(run_id)
    assert call(run, *where)[0] == 0
    assert len(client.search_runs([experiment])) == 1


@with_mlflow
def test_mlflow_knows_that_a_run_failed_and_has_long_ones_whole(call, server, tmp_path):
    import mlflow

    rounds = 120  # of more than a thousand points, which is more than a request takes
    long = write_run(tmp_path, "long", accuracies=[50.0] * rounds, anchors=False)
    set_status(long, "failed", reason="round 121: too few clients")
    code, output = call(long, "--to", "mlflow", "--tracking-uri", server)
    assert code == 0, output
    client = mlflow.MlflowClient(server)
    run_id = output.strip().rpartition("/")[2]
    assert client.get_run(run_id).info.status == "FAILED"
    assert client.get_run(run_id).data.tags["reason"] == "round 121: too few clients"
    assert len(client.get_metric_history(run_id, "rounds/accuracy")) == rounds
    assert len(list(cells(long))) > 1000


@with_mlflow
def test_a_run_that_mlflow_does_not_take_whole_is_taken_back(run, call, server, monkeypatch):
    import mlflow

    def refuse(*arguments, **options):
        raise mlflow.exceptions.MlflowException("no space left")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifact", refuse)
    where = ["--to", "mlflow", "--tracking-uri", server, "--experiment", "half"]
    code, output = call(run, *where)
    assert (code, output.count("\n")) == (1, 1)
    assert f"MLflow at {server}: no space left" in output
    client = mlflow.MlflowClient(server)
    assert client.search_runs([client.get_experiment_by_name("half").experiment_id]) == []


@with_mlflow
def test_a_server_that_is_not_there(run, call, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    code, output = call(run, "--to", "mlflow", "--tracking-uri", "http://127.0.0.1:9")
    assert (code, output.count("\n")) == (1, 1)
    assert "MLflow at http://127.0.0.1:9" in output


@with_wandb
def test_wandb_keeps_a_run_for_later_once(run, call, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, output = call(run, "--to", "wandb", "--project", "me/study")
    assert code == 0, output
    (kept,) = (run / "wandb").glob("offline-run-*")
    assert output.startswith(f"logged: {kept}; `wandb sync`")
    (record,) = kept.glob("*.wandb")
    history, config, summary = read_back(record)
    assert config["strategy"] == "fedadb"
    assert config["run"]["seed"] == "3"
    assert summary["summary/final_accuracy"] == ACCURACIES[-1]
    expected = {}
    for server_round, tag, value in cells(run):
        expected.setdefault(server_round, {})[tag] = value
    own = {step: {k: v for k, v in row.items() if k[0] != "_"} for step, row in history.items()}
    assert own == expected

    code, output = call(run, "--to", "wandb", "--project", "me/study")
    assert (code, output.count("\n")) == (1, 1)
    assert "logged already as W&B run" in output
    assert len(list((run / "wandb").glob("offline-run-*"))) == 1


def read_back(record):
    """History by step, configuration and summary of W&B's own file of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    history, config, summary = {}, {}, {}
    for data in logged(record.read_bytes()):
        entry = Record.FromString(data)
        kind = entry.WhichOneof("record_type")
        if kind == "history":
            history.setdefault(entry.history.step.num, {}).update(named(entry.history.item))
        elif kind in ("config", "run"):
            config |= named((entry.config if kind == "config" else entry.run.config).update)
        elif kind == "summary":
            summary |= named(entry.summary.update)
    return history, config, summary


def named(items):
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}


def logged(content):
    """Yield the records of a LevelDB log, which begins here with seven bytes of W&B's own.

    In blocks of 32 KiB, each piece with four bytes of checksum, two of length, one of kind: 1 is a
    whole record, 2, 3 and 4 are the first, a middle and the last piece of one.
    """
    at, pieces = 7, b""
    while at + 7 <= len(content):
        left = 2**15 - at % 2**15
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        if left < 7 or kind == 0:  # the rest of a block
            at += left
            continue
        pieces += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield pieces
            pieces = b""
