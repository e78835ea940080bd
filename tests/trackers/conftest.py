import shutil

import pytest
from report_pages import undrawn, write_run
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.report.svg import Picture


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A run of four rounds, which no test changes."""
    return write_run(tmp_path_factory.mktemp("written"), seed=3)


@pytest.fixture
def run(written, tmp_path):
    return shutil.copytree(written, tmp_path / "run")


@pytest.fixture
def call(monkeypatch):
    """Call `fedadb log`: its exit code and what it prints."""
    monkeypatch.setattr(Picture, "svg", property(undrawn))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)

    def called(*arguments):
        result = CliRunner().invoke(main, ["log", *map(str, arguments)])
        return result.exit_code, result.output

    return called
