"""The folder of a run that has just begun."""

import pytest

from fedadb_app.config import RunConfig
from fedadb_app.runs.writer import RunFolder


@pytest.fixture
def config(tmp_path) -> RunConfig:
    return RunConfig(output_dir=str(tmp_path), run_name="run", dataset="digits", seed=3)


@pytest.fixture
def folder(config) -> RunFolder:
    return RunFolder.create(config, run_id=1)
