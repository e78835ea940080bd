"""What version 0.1.0 left behind is still read: a stopped run of two nodes, and its checkpoint."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from fedadb_app.errors import ConfigError
from fedadb_app.runs.checkpoint import Checkpoint, checkpoint_to_resume
from fedadb_app.runs.reader import read_configuration, read_files
from strategies.registry import read_run_config

WRITTEN = Path(__file__).parent / "version_0_1_0"
FACTS = (WRITTEN / "facts.json").read_text()


@pytest.fixture
def old(tmp_path) -> Path:
    """The run's folder, and a checkpoint as that version wrote it: text, and a sum over all."""
    folder = shutil.copytree(WRITTEN, tmp_path / "old")
    tensors = {"model/w": torch.ones(2), "state/m": torch.zeros(1)}
    checksum = hashlib.sha256(FACTS.encode() + save(tensors)).hexdigest()
    path = Checkpoint.path(folder)
    path.parent.mkdir()
    path.write_bytes(save(tensors, {"text": FACTS, "sha256": checksum}))
    return folder


def test_its_files_are_read_without_a_fault(old):
    run = read_files(old)
    assert not run.faults
    assert (run.summary["status"], run.num_rounds, len(run.rounds.rows)) == ("stopped", 4, 3)
    assert run.rounds.known("accuracy")[1].tolist() == [13.89, 10.0, 10.28]
    assert len(run.class_names) == 10
    assert run.class_counts().shape == (2, 10)
    assert read_configuration(old)["strategy"] == "feddyn"


def test_its_checkpoint_is_read_and_can_be_resumed(old):
    found = Checkpoint.read(old)
    assert found.facts.round == 2
    unknown_then = {"data": ""}  # the digest of the server's data
    assert json.loads(found.facts.model_dump_json()) == json.loads(FACTS) | unknown_then
    assert torch.equal(found.model["w"], torch.ones(2))
    config, _, own = read_run_config({**found.facts.config, "resume-from": str(old)})
    assert checkpoint_to_resume(config, own).facts == found.facts


def test_what_it_did_not_know_was_as_it_is_by_default(old):
    values = Checkpoint.read(old).facts.config
    assert "max-reply-bytes" not in values
    config, _, own = read_run_config({**values, "resume-from": str(old), "alpha": 0.5})
    with pytest.raises(ConfigError, match=r"alpha was 0\.1 in that run and is 0\.5 in this one"):
        checkpoint_to_resume(config, own)
