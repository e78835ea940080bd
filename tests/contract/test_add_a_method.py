"""docs/add-a-method.md, executed as it stands: FedProx in one file and one line."""

import importlib.util
import re
import sys
import tomllib

import pytest
from helpers import REPOSITORY, identical, make_federation

import strategies.registry
from fedadb_app.config import parse_run_config
from fedadb_app.errors import ConfigError

PAGE = (REPOSITORY / "docs" / "add-a-method.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def fedprox(tmp_path, monkeypatch):
    """Write the page's file, import it as the registry would, and add the page's line."""
    source, line = blocks("python")
    path = tmp_path / "fedprox.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("strategies.fedprox", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "strategies.fedprox", module)
    spec.loader.exec_module(module)
    added = eval("{" + line + "}", {"fedprox": module})
    for owner in (strategies.registry, sys.modules["client_app"]):
        monkeypatch.setattr(owner, "METHODS", {**strategies.registry.METHODS, **added})
    return module


def run(tmp_path, name, **values):
    settings = {
        "strategy": name,
        "output-dir": str(tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"),
        "num-server-rounds": 2,
        "local-epochs": 1,
        "learning-rate": 0.05,
        **values,
    }
    federation = make_federation(settings)
    before = {n: t.clone() for n, t in federation.strategy.global_model.items()}
    federation.run()
    return before, federation.strategy.global_model


def test_mu_zero_is_fedavg(fedprox, tmp_path):
    _, prox = run(tmp_path, "fedprox", **{"fedprox.mu": 0.0})
    _, avg = run(tmp_path, "fedavg")
    assert identical(prox, avg)


def test_a_large_mu_holds_the_model_where_it_was(fedprox, tmp_path):
    def moved(mu):
        before, after = run(tmp_path, "fedprox", **{"fedprox.mu": mu})
        return sum(float((after[n] - before[n]).square().sum()) for n in before)

    assert moved(10.0) < 0.25 * moved(0.0)


def test_its_values_are_checked_like_any_others(fedprox):
    tables = {name: m.params for name, m in strategies.registry.METHODS.items()}
    with pytest.raises(ConfigError, match=r"fedprox\.mu=-1"):
        parse_run_config({"fedprox.mu": -1}, tables)


def test_the_table_on_the_page_holds_the_defaults(fedprox):
    (text,) = blocks("toml")
    table = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]["fedprox"]
    assert table == fedprox.FedProxParams.defaults()
