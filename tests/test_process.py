"""What the app's processes arrange: memory stays, and a simulation has a Ray of its own."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import REPOSITORY

from fedadb_app.process import prepare_simulation

BATCHES = """
import ctypes, resource, sys
from fedadb_app.process import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def batch():
    maps = [libc.malloc(1 << 20) for _ in range(32)]
    for block in maps:
        libc.memset(block, 1, 1 << 20)
    for block in maps:
        libc.free(block)

if sys.argv[1] == "keep":
    keep_freed_memory()
for _ in range(3):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", BATCHES, mode], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_a_batch_finds_the_memory_of_the_batch_before_it():
    pages_of_a_batch = (32 << 20) // 4096
    assert page_faults("default") > 10 * pages_of_a_batch  # or there is nothing to mend
    assert page_faults("keep") < pages_of_a_batch


SCATTERED = """
import ctypes, sys
from fedadb_app.process import keep_freed_memory, release_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) // 256  # pages to MiB

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
keep_freed_memory()
blocks = [libc.malloc(1 << 20) for _ in range(128)]
for block in blocks:
    libc.memset(block, 1, 1 << 20)
for block in blocks[:-1]:  # the last one keeps the others from the end of the heap
    libc.free(block)
before = resident()
release_freed_memory(int(sys.argv[1]))
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
@pytest.mark.parametrize(("server_round", "least", "most"), [(20, 100, 130), (21, 0, 5)])
def test_what_lies_scattered_is_given_back_every_tenth_round(server_round, least, most):
    done = subprocess.run(
        [sys.executable, "-c", SCATTERED, str(server_round)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert least <= int(done.stdout) <= most


@pytest.mark.slow
def test_a_client_process_does_not_load_what_only_the_server_needs():
    """A SuperNode starts a new one for every message."""
    code = (
        "import client_app, sys; print(sorted({'scipy', 'sqlalchemy', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("chosen", "used"), [(None, "local"), ("10.0.0.1:6379", "10.0.0.1:6379")])
def test_a_simulation_joins_no_cluster_but_a_chosen_one(monkeypatch, tmp_path, chosen, used):
    """Ray joins whatever /tmp/ray names unless RAY_ADDRESS says otherwise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if chosen:
        monkeypatch.setenv("RAY_ADDRESS", chosen)
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/flwr-simulation"])
    joined = []
    monkeypatch.setattr("ray.init", lambda **given: joined.append(given))
    monkeypatch.setattr("fedadb_app.simulation_workers.keep_living_workers", lambda: None)
    prepare_simulation(REPOSITORY)
    assert os.environ["RAY_ADDRESS"] == used
    assert Path.cwd() == REPOSITORY
    brought = {"runtime_env": {"working_dir": str(REPOSITORY)}}
    assert joined == ([brought] if chosen else [])


def test_other_processes_are_left_as_they_are(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    prepare_simulation(REPOSITORY)
    assert "RAY_ADDRESS" not in os.environ
    assert Path.cwd() == tmp_path
