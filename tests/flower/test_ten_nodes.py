"""Ten hospitals and a model of ResNet-18's size, on one machine, with a database.

The model is a LeNet for images of 312 x 312 pixels: 43 MB, as many as ResNet-18 has at three
classes, and a hundredth of its arithmetic. What ten of them broke was the SuperLink, which sees
bytes only.
"""

import contextlib

import numpy as np
import pytest

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(1500)]

NODES, ROUNDS, SIDE = 10, 5, 312


@pytest.fixture
def images(tmp_path):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (12 * NODES, SIDE, SIDE), np.uint8)
    labels = np.arange(12 * NODES).reshape(-1, 1) % 3
    held_out = {"test_images": pixels[:6], "test_labels": labels[:6]}
    np.savez(tmp_path / "wide.npz", train_images=pixels, train_labels=labels, **held_out)
    return tmp_path / "wide.npz"


def test_ten_nodes_complete_five_rounds_of_a_model_of_resnet18s_size(doomed_deployment, images):
    link = doomed_deployment
    with contextlib.ExitStack() as running:
        for k in range(NODES):
            running.enter_context(link.supernode(k, NODES))
        outcome = link.run(
            f'strategy="fedavg" model="lenet" dataset="{images}" partition="iid" '
            f'local-epochs=1 batch-size=12 num-server-rounds={ROUNDS} evaluate="none" '
            f"min-nodes={NODES} round-timeout=300.0"
        )
        said = link.said()
        stored = link.database.stat().st_size
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("clients") == [str(NODES)] * ROUNDS
    assert outcome.column("failures") == ["0"] * ROUNDS
    assert all(int(size) > NODES * 40e6 for size in outcome.column("bytes_up"))
    assert "database is locked" not in said
    assert stored < 20e6  # nodes and runs, of half a gigabyte that each round sends
