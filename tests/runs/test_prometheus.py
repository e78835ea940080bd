"""`fedadb metrics`: what Prometheus reads of the runs in a folder."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.config import RunConfig
from fedadb_app.runs.prometheus import RunsCollector
from fedadb_app.runs.record import RoundRecord
from fedadb_app.runs.writer import RunFolder


@pytest.fixture
def run_of_two_rounds(tmp_path: Path) -> Path:
    """An interrupted run of three rounds of which the second was not evaluated."""
    config = RunConfig(output_dir=str(tmp_path), run_name="study", dataset="digits", seed=3)
    config = config.model_copy(update={"num_server_rounds": 3})
    with RunFolder.create(config, run_id=7) as folder:
        folder.write_config(config, {})
        first = RoundRecord(1, accuracy=71.25, clients=3, failures=1, bytes_down=100, bytes_up=40)
        first.seconds_train = 1.5
        first.class_accuracy = (70.0, 72.5)
        folder.add_round(first, ["cat", "dog"])
        second = RoundRecord(2, clients=2, failures=2, bytes_down=1000, bytes_up=400)
        second.seconds_train = 2.25
        folder.add_round(second, ["cat", "dog"])
        folder.stop()
    os.utime(tmp_path / "study" / "rounds.csv", (1_000_000_000, 1_000_000_000))
    return tmp_path


def scraped(folder: Path) -> str:
    """Return what a scrape answers."""
    registry = CollectorRegistry()
    registry.register(RunsCollector(folder))
    return generate_latest(registry).decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the values by name, run and the values of further labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sorted(sample.labels.items()))
            key = (sample.name, labels.pop("run"), *labels.values())
            assert key not in found
            found[key] = sample.value
    return found


def test_the_values_are_those_of_the_files(run_of_two_rounds):
    found = samples(scraped(run_of_two_rounds))
    assert found.pop(("fedadb_seconds_since_last_round", "study")) > 700_000_000  # since 2001
    info = [key for key in found if key[0] == "fedadb_run_info"]
    assert [set(key) for key in info] == [{"fedadb_run_info", "study", "fedadb", "digits", "3"}]
    assert found.pop(info[0]) == 1
    assert found == {
        ("fedadb_damaged_files", "study"): 0,
        ("fedadb_status", "study", "running"): 0,
        ("fedadb_status", "study", "completed"): 0,
        ("fedadb_status", "study", "failed"): 0,
        ("fedadb_status", "study", "stopped"): 1,
        ("fedadb_round", "study"): 2,
        ("fedadb_rounds_planned", "study"): 3,
        ("fedadb_accuracy_percent", "study"): 71.25,
        ("fedadb_clients", "study"): 2,
        ("fedadb_failures_total", "study"): 3,
        ("fedadb_bytes_total", "study", "down"): 1100,
        ("fedadb_bytes_total", "study", "up"): 440,
        ("fedadb_seconds_total", "study", "anchors"): 0,
        ("fedadb_seconds_total", "study", "train"): 3.75,
        ("fedadb_seconds_total", "study", "aggregate"): 0,
        ("fedadb_seconds_total", "study", "evaluate"): 0,
    }


def test_every_sample_has_a_meaning_and_a_type(run_of_two_rounds):
    text = scraped(run_of_two_rounds)
    named = {re.match(r"\w+", line).group() for line in text.splitlines() if line[0] != "#"}
    for kind in ("HELP", "TYPE"):
        told = {line.split()[2] for line in text.splitlines() if f"# {kind}" in line}
        assert named <= told
    assert "# TYPE fedadb_failures_total counter" in text
    assert "# TYPE fedadb_round gauge" in text


def test_a_run_before_its_first_round_has_no_accuracy_and_round_0(tmp_path):
    config = RunConfig(output_dir=str(tmp_path), run_name="new", dataset="digits")
    with RunFolder.create(config, run_id=7):
        found = samples(scraped(tmp_path))
    assert found["fedadb_round", "new"] == 0
    assert found["fedadb_status", "new", "running"] == 1
    assert not any(key[0] in {"fedadb_accuracy_percent", "fedadb_clients"} for key in found)


def test_names_that_need_escaping_come_back_as_they_are(run_of_two_rounds):
    strange = 'a "quoted"\\ name\nof two lines, ü'
    (run_of_two_rounds / "study").rename(run_of_two_rounds / strange)
    assert samples(scraped(run_of_two_rounds))["fedadb_round", strange] == 2


def test_a_name_that_is_no_text_does_not_end_a_scrape(run_of_two_rounds):
    os.rename(run_of_two_rounds / "study", os.fsencode(run_of_two_rounds) + b"/st\xffdy")
    assert samples(scraped(run_of_two_rounds))["fedadb_round", "st\ufffddy"] == 2


@given(
    name=st.sampled_from(["summary.json", "rounds.csv", "config.toml", "diagnostics.csv"]),
    content=st.one_of(
        st.binary(max_size=200),
        st.sampled_from(
            [b"[]", b"null", b'{"status": "running", "rounds": 1e999, "seconds": 0}', b"round\n1\n"]
        ),
        st.integers(0, 400),  # cut off there
    ),
)
@settings(max_examples=50)
def test_a_damaged_run_costs_the_others_nothing(name, content):
    with tempfile.TemporaryDirectory() as base:
        for run in ("bad", "good"):
            config = RunConfig(output_dir=base, run_name=run, dataset="digits")
            with RunFolder.create(config, run_id=7) as folder:
                folder.write_config(config, {})
                folder.add_round(RoundRecord(1, clients=3), ["cat"])
        victim = Path(base, "bad", name)
        before = victim.read_bytes() if victim.exists() else b""
        victim.write_bytes(before[:content] if isinstance(content, int) else content)
        found = samples(scraped(Path(base)))
        assert found["fedadb_clients", "good"] == 3
        assert ("fedadb_damaged_files", "bad") in found
        assert ("fedadb_round", "bad") in found or found["fedadb_damaged_files", "bad"] == 1


def test_a_folder_without_summary_is_no_run(run_of_two_rounds):
    (run_of_two_rounds / "tensorboard").mkdir()
    (run_of_two_rounds / "notes.txt").touch()
    found = samples(scraped(run_of_two_rounds))
    assert {key[1] for key in found if key[0] == "fedadb_damaged_files"} == {"study"}


# --- the command ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_command_serves_on_this_machine_only_and_reads_anew(run_of_two_rounds):
    command = [sys.executable, "-c", "from fedadb_app.cli.main import main; main()", "metrics"]
    command += ["--output-dir", str(run_of_two_rounds), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", address)
            reply = httpx.get(address, timeout=30)
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/plain; version=")
            assert samples(reply.text)["fedadb_round", "study"] == 2
            (run_of_two_rounds / "study" / "summary.json").write_bytes(b"\xff{")
            found = samples(httpx.get(address, timeout=30).text)
            assert found == {("fedadb_damaged_files", "study"): 1}
        finally:
            process.terminate()


def refusal(*options: str) -> str:
    result = CliRunner().invoke(main, ["metrics", *options])
    assert result.exit_code == 1
    return result.output


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    said = refusal(f"--output-dir={tmp_path}/runz")
    assert said == f"error: --output-dir {tmp_path}/runz: there is no such folder\n"


def test_a_port_that_is_taken_is_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(f"--output-dir={tmp_path}", f"--port={port}")
    assert f"--host 127.0.0.1 --port {port}: cannot listen there (Address already in use)" in said
