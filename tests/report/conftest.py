import shutil

import pytest
from report_pages import html_of, write_comparison, write_run


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A run and a comparison, which no test changes."""
    base = tmp_path_factory.mktemp("written")
    return {"run": write_run(base), "comparison": write_comparison(base / "comparison")}


@pytest.fixture(scope="session")
def drawn(written, tmp_path_factory):
    """Their pages, with every picture drawn."""
    folder = tmp_path_factory.mktemp("pages")
    return {name: html_of(path, folder, drawn=True) for name, path in written.items()}


@pytest.fixture
def run(written, tmp_path):
    return shutil.copytree(written["run"], tmp_path / "run")


@pytest.fixture
def comparison(written, tmp_path):
    return shutil.copytree(written["comparison"], tmp_path / "comparison")


@pytest.fixture(params=["run", "comparison"])
def either(request):
    return request.getfixturevalue(request.param)
