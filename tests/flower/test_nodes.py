"""`fedadb superlink` and `fedadb supernode` without their SuperExecs; and Flower's own commands."""

import os
import signal

import pytest
from flower.processes import superexec_of, wait_until
from flower.superlink import SuperLink

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]


def test_without_its_superexec_a_process_ends_so_that_systemd_starts_both(doomed_deployment):
    link = doomed_deployment
    with link.supernode(0, 1) as node:
        for name, process in (("supernode", node), ("superlink", link.process)):
            os.kill(superexec_of(process), signal.SIGKILL)
            wait_until(lambda process=process: process.poll() is not None, f"{name} lives on")
            assert "the SuperExec has ended with -9, so this process ends" in link.said(name)


def test_flowers_own_commands_do_too(app, tmp_path):
    """Slower, and for few nodes: a process that imports for each message, and no database."""
    (tmp_path / "home").mkdir()
    link = SuperLink(app, simulation=False, plain=True, home=tmp_path / "home")
    try:
        link.start()
        with link.supernode(0, 2), link.supernode(1, 2):
            outcome = link.run('strategy="fedavg" local-epochs=1 num-server-rounds=1')
    finally:
        link.stop()
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("clients") == ["2"]
