"""Starting Flower runs from outside: what is parsed, passed on, and counts as an end."""

import json
import shutil
import signal
import stat
from pathlib import Path

import pytest

from fedadb_app import flower_run
from fedadb_app.assignments import as_assignments, flatten, parse_assignments
from fedadb_app.errors import ConfigError
from fedadb_app.flower_run import FlowerError, FlowerRun, Simulation
from fedadb_app.runs.summary import read_summary


def test_assignments_are_parsed_as_toml_values():
    text = 'strategy="fedavg" alpha=0.1  seed=3 augment=false fedadb.beta="0.5"\nrun-name = "a b"'
    assert parse_assignments(text) == {
        "strategy": "fedavg",
        "alpha": 0.1,
        "seed": 3,
        "augment": False,
        "fedadb.beta": "0.5",
        "run-name": "a b",
    }
    assert parse_assignments("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategy=fedavg", 'write texts in double quotes: strategy="fedavg"'),
        ("alpha", '"alpha" in the run configuration is no key=value pair'),
        ("alpha=0.1, seed=1", "alpha=0.1, is no TOML value"),
        ('run-name="open', "no key=value pair"),
        ("=3", "no key=value pair"),
        ("/nowhere/else.toml", "cannot be read"),
    ],
)
def test_what_flower_would_drop_silently_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        parse_assignments(text)


def test_a_toml_file_is_flattened(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('alpha = 0.5\n[fedadb]\nbeta = "0.1"\n')
    assert parse_assignments(str(path)) == {"alpha": 0.5, "fedadb.beta": "0.1"}
    assert flatten({"a": {"b": {"c": 1}}, "d": 2}) == {"a.b.c": 1, "d": 2}


def test_assignments_survive_the_way_to_flower_and_back():
    values = {"strategy": "fedavg", "alpha": 1e-3, "seed": 0, "augment": True, "data-dir": "/a b/c"}
    assert parse_assignments(as_assignments(values)) == values


def test_simulation_arguments():
    assert Simulation(100, 1, 0.25).arguments() == (
        "num-supernodes=100 client-resources-num-cpus=1 client-resources-num-gpus=0.25"
    )


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    """Put a `flwr` on PATH that answers from a script and notes what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "flwr"
    notes = tmp_path / "asked"

    def answer(**answers: dict):
        (tmp_path / "answers.json").write_text(json.dumps(answers))
        program.write_text(
            "#!/usr/bin/env python3\nimport json, sys\n"
            f"open({str(notes)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
            f"answers = json.load(open({str(tmp_path / 'answers.json')!r}))\n"
            "print('Flower says hello')\nprint(json.dumps(answers[sys.argv[1]]))\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return lambda: [json.loads(line) for line in notes.read_text().splitlines()]

    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return answer


def test_a_run_is_submitted_and_its_real_status_read(flwr, tmp_path):
    listed = {"success": True, "runs": [{"status": "finished:failed", "status-details": "boom"}]}
    asked = flwr(run={"success": True, "run-id": "42"}, list=listed, stop={"success": True})
    run = FlowerRun(tmp_path, {"alpha": 0.1}, Simulation(5))
    assert run.run_id == "42"
    assert run.status() == ("finished:failed", "boom")
    run.stop()
    submit, ask, stop = asked()
    assert submit[:2] == ["run", str(tmp_path)]
    assert submit[submit.index("--run-config") + 1] == "alpha=0.1"
    assert "num-supernodes=5" in submit[submit.index("--federation-config") + 1]
    assert ask[:3] == ["list", "--run-id", "42"]
    assert stop[:2] == ["stop", "42"]


def test_a_submitted_checkout_is_noted_for_its_run(flwr, tmp_path, monkeypatch):
    noted = []
    monkeypatch.setattr(flower_run, "note_commit", noted.append)
    flwr(run={"success": True, "run-id": "42"})
    FlowerRun(tmp_path, {}, Simulation())
    assert noted == [tmp_path]


def test_a_second_interruption_does_not_keep_a_stop_from_arriving(flwr, tmp_path):
    asked = flwr(run={"success": True, "run-id": "42"}, stop={"success": True})
    run = FlowerRun(tmp_path, {}, Simulation())
    program = Path(shutil.which("flwr"))
    program.write_text(
        program.read_text() + "import os, signal\nos.kill(os.getppid(), signal.SIGINT)\n"
    )
    before = signal.getsignal(signal.SIGINT)
    run.stop()
    assert asked()[-1][:2] == ["stop", "42"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_refused_run_says_what_flower_said(flwr, tmp_path):
    flwr(run={"success": False, "error-message": "Invalid run configuration"})
    with pytest.raises(FlowerError, match="Invalid run configuration"):
        FlowerRun(tmp_path, {}, Simulation())


def test_waiting_ends_with_flowers_word_not_with_the_summary(flwr, tmp_path):
    """A summary that says completed is not enough."""
    listed = {
        "success": True,
        "runs": [{"status": "finished:failed", "status-details": "Ray died"}],
    }
    flwr(run={"success": True, "run-id": "1"}, list=listed)
    (tmp_path / "summary.json").write_text('{"status": "completed"}')
    looks = []
    run = FlowerRun(tmp_path, {}, None, superlink="hospital")
    assert run.wait(tmp_path, lambda: looks.append(1)) == ("finished:failed", "Ray died")
    assert looks


def test_a_process_that_outlives_its_run_is_stopped(flwr, tmp_path, monkeypatch):
    """A simulation that waits for CPUs runs on for ever, though the ServerApp has given up."""
    monkeypatch.setattr(flower_run, "_GRACE", 0.0)
    listed = {"success": True, "runs": [{"status": "running", "status-details": ""}]}
    asked = flwr(run={"success": True, "run-id": "1"}, list=listed, stop={"success": True})
    (tmp_path / "summary.json").write_text('{"status": "failed", "reason": "0 SuperNodes"}')
    run = FlowerRun(tmp_path, {}, Simulation())
    assert run.wait(tmp_path, lambda: None) == ("finished:failed", "0 SuperNodes")
    assert asked()[-1][:2] == ["stop", "1"]


def test_a_client_that_no_worker_could_take_is_refused(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert Simulation(client_cpus=4).client_cpus == 4
    with pytest.raises(ConfigError, match="--client-cpus 5: this machine has 4 CPUs"):
        Simulation(client_cpus=5)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # whose machines may be larger
    assert Simulation(client_cpus=5).client_cpus == 5


def test_without_flwr_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FlowerError, match="not on PATH"):
        FlowerRun(tmp_path, {}, None)


def test_a_missing_or_half_written_summary_is_empty(tmp_path):
    assert read_summary(tmp_path) == {}
    (tmp_path / "summary.json").write_text('{"status": ')
    assert read_summary(tmp_path) == {}
