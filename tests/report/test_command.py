"""`fedadb report`."""

import pytest
from report_pages import undrawn
from typer.testing import CliRunner

from fedadb_app.cli.main import main
from fedadb_app.report.svg import Picture


def call(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


@pytest.fixture(autouse=True)
def pictures_are_not_drawn(monkeypatch):
    monkeypatch.setattr(Picture, "svg", property(undrawn))


def test_the_command(run, tmp_path):
    assert call(run).exit_code == 0
    assert (run / "report.html").exists()
    result = call(run, "--output", tmp_path / "mine.html")
    assert str(tmp_path / "mine.html") in result.output
    assert (tmp_path / "mine.html").read_text() == (run / "report.html").read_text()


def test_a_mistake_gets_one_sentence(run, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, said in [
        ([tmp_path / "empty"], "is neither a run's folder (no summary.json) nor a comparison's"),
        ([tmp_path / "nowhere"], "is neither"),
        ([run, "--output", tmp_path / "nowhere" / "page.html"], "cannot be written"),
    ]:
        result = call(*arguments)
        assert result.exit_code == 1
        assert said in result.output
        assert result.output.count("\n") == 1
