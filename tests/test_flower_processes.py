"""Flower's processes as `fedadb superlink` and `fedadb supernode` start them, but without them.

The real ones: tests/flower/test_nodes.py.
"""

import hashlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from helpers import REPOSITORY
from typer.testing import CliRunner

from fedadb_app import flower_processes
from fedadb_app.cli import nodes
from fedadb_app.cli.main import main

LEFT_TO_IMPORT = """
import importlib, json, sys
for name in {imported!r}:
    importlib.import_module(name)
assert not [m for m in sys.modules if m.split(".")[0] in {own!r}]
before = set(sys.modules)
sys.path.insert(0, {app!r})
import client_app, torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
new = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(json.dumps(sorted(new - set(sys.stdlib_module_names) - set({own!r}))))
"""


def test_a_forked_client_finds_all_libraries_imported_and_no_module_of_the_app():
    own = ["client_app", "server_app", "fedadb_app", "strategies"]
    code = LEFT_TO_IMPORT.format(
        imported=flower_processes.IMPORTED_ONCE, own=own, app=str(REPOSITORY)
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    few = {"_cython_3_2_4", "numpy", "PIL"}  # a module or two of packages that are there already
    assert set(json.loads(done.stdout)) - few == set()


@pytest.mark.parametrize("name", ["superlink", "supernode"])
def test_the_commands_pass_every_option_on(monkeypatch, name):
    called = []
    monkeypatch.setattr(nodes.os, "execv", lambda path, words: called.append((path, words)))
    options = ["--insecure", "--node-config", 'data-path="/x y"', "--help", "-V"]
    assert CliRunner().invoke(main, [name, *options]).exit_code == 0
    own = flower_processes.command(getattr(flower_processes, name))
    assert called == [(sys.executable, own + options)]


def test_windows_is_told_what_to_use_instead(monkeypatch):
    monkeypatch.setattr(nodes.sys, "platform", "win32")
    result = CliRunner().invoke(main, ["supernode", "--insecure"])
    assert result.exit_code == 1
    assert "use flower-supernode" in result.output


def test_a_module_in_the_working_directory_is_not_run(tmp_path):
    (tmp_path / "fedadb_app.py").write_text("raise RuntimeError('not this one')\n")
    command = flower_processes.command(flower_processes.superlink)
    done = subprocess.run(
        [*command, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: flower-superlink")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for sleeping; returns the sleeps."""
    slept = []
    monkeypatch.setattr(flower_processes.time, "sleep", slept.append)
    monkeypatch.setattr(flower_processes.time, "monotonic", lambda: 1000 + sum(slept))
    return slept


def test_a_wait_is_a_tenth_of_what_was_waited_at_most_as_long_as_flowers(clock):
    waits = flower_processes._Impatient()
    while sum(clock) < 60:
        waits.sleep(3)
    assert clock[0] == 0.1
    assert clock == sorted(clock)
    assert clock[-1] == 3
    # What any message waits beyond the moment it came, in the worst case: a tenth of the wait.
    assert all(s <= max(0.1, sum(clock[:i]) / 10) + 1e-9 for i, s in enumerate(clock))


def test_another_wait_begins_anew(clock):
    waits = flower_processes._Impatient()
    while sum(clock) < 60:
        waits.sleep(3)
    waits.sleep(0.5)
    waits.sleep(3)
    assert clock[-2:] == [0.1, 0.1]
    while sum(clock) < 120:
        waits.sleep(3)
    waits.begin_anew()
    waits.sleep(3)
    assert clock[-1] == 0.1


def test_what_flower_starts_is_replaced_and_its_end_ends_the_process(tmp_path):
    code = """
import subprocess, sys, time, types
from fedadb_app.flower_processes import _end_with_superexec
module = types.SimpleNamespace(subprocess=subprocess)
_end_with_superexec(module, [sys.executable, "-c", "import sys; print(sys.argv[1:], flush=True)"])
module.subprocess.Popen(["flower-superexec", "--insecure"])
assert module.subprocess.TimeoutExpired is subprocess.TimeoutExpired
time.sleep(60)
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert time.monotonic() - begun < 50
    assert done.stdout == "['--insecure']\n"
    assert done.returncode == -15  # SIGTERM
    assert "the SuperExec has ended with 0, so this process ends" in done.stderr


def test_threads_take_turns_at_the_database_and_look_for_lost_tasks_once_a_second(monkeypatch):
    inside, most, looks = [], [], []

    class Database:
        @contextmanager
        def session(self):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            yield self
            inside.pop()

        def _cleanup_expired_task_tokens(self):
            with self.session():
                looks.append(now[0])

    now = [0.0]
    flower_processes._write_in_turn(Database, Database)
    monkeypatch.setattr(flower_processes.time, "monotonic", lambda: now[0])
    database = Database()

    def write(_):
        with database.session(), database.session():  # who has the turn may ask again
            pass

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(8)))
    assert max(most) == 2
    for now[0] in (1.0, 1.5, 1.9, 2.1, 3.0, 3.2):
        database._cleanup_expired_task_tokens()
    assert looks == [1.0, 2.1, 3.2]


def test_an_app_is_installed_for_its_first_message_only(monkeypatch, tmp_path):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    installed = []

    def install(bundle, skip_prompt):
        digest = hashlib.sha256(bundle).hexdigest()
        (tmp_path / "apps" / f"fedadb.fedadb-app.1.0.0.{digest[:8]}").mkdir(parents=True)
        installed.append((bundle, skip_prompt))

    for bundle in (b"one", b"one", b"two", b"one", b"two"):
        flower_processes._install_once(install, bundle, skip_prompt=True)
    assert installed == [(b"one", True), (b"two", True)]
