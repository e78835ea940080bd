"""Thirty rounds on a real SuperNode: no process that lives on may grow with the rounds."""

import time

import psutil
import pytest

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1800)]

ROUNDS = 30


def memory(root: psutil.Process) -> dict[int, float]:
    """Private MiB of a process and of all that it started, by process id."""
    found = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            found[process.pid] = process.memory_full_info().uss / 2**20
        except psutil.NoSuchProcess:  # a ClientApp lives for one message
            continue
    return found


def test_no_process_grows_with_the_rounds(deployment):
    with deployment.supernode(0, 1) as node:
        roots = [psutil.Process(deployment.process.pid), psutil.Process(node.pid)]
        run = deployment.submit(
            f'strategy="fedavg" model="lenet" num-server-rounds={ROUNDS} local-epochs=1'
        )
        seen: dict[int, dict[int, float]] = {}
        while run.summary_status() in {"", "running"}:
            if (done := run.finished_rounds()) not in seen:
                seen[done] = memory(roots[0]) | memory(roots[1])
            time.sleep(0.2)
        outcome = deployment.wait(run)
    assert outcome.status == "finished:completed", outcome.details
    early, late = (max(t for t in seen if t <= end) for end in (6, ROUNDS - 1))
    assert early >= 4
    assert late >= ROUNDS - 3
    lasting = seen[early].keys() & seen[late].keys()
    assert len(lasting) >= 4  # SuperLink, SuperExec, ServerApp, SuperNode
    grown = {pid: seen[late][pid] - seen[early][pid] for pid in lasting}
    assert max(grown.values()) < 5, grown
