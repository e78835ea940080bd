"""A hospital's study file: each limit refuses what goes beyond it, and nothing else."""

import pytest
from fake_grid import node_id
from helpers import REPOSITORY, messages_of, own_data

from fedadb_app.app_hash import app_hash, running_app_hash
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from fedadb_app.privacy import epsilon_spent
from fedadb_app.study import Study, read_study, refuse_beyond

OWN = {"dataset": "nodes", "classes": "a,b", "image-shape": "1x28x28", "evaluate": "clients"}
PRIVATE = {"privacy": "local", "noise-multiplier": 2.0, "delta": 1e-5}


def config(**values) -> RunConfig:
    return RunConfig.model_validate({"num-server-rounds": 10, **values})


def spent(rounds: int) -> float:
    return epsilon_spent(config(**PRIVATE), rounds)


WITHIN_AND_BEYOND = {
    "trusted-apps": ([running_app_hash()], {}, None),
    "strategies": (["fedavg", "fedadb"], {"strategy": "fedavg"}, {"strategy": "feddyn"}),
    "classes": (["a", "b", "c"], OWN, {**OWN, "classes": "a,d"}),
    "own-code": (["nets:build"], {"model": "nets:build"}, {"dataset": "images:load"}),
    "max-rounds": (10, {}, {"num-server-rounds": 11}),
    "max-local-epochs": (5, {"local-epochs": 5}, {"local-epochs": 6}),
    "privacy": (["local", "central"], PRIVATE, {"privacy": "none"}),
    "min-noise-multiplier": (2.0, PRIVATE, {**PRIVATE, "noise-multiplier": 1.99}),
    "max-epsilon": (spent(10), PRIVATE, {**PRIVATE, "num-server-rounds": 11}),
    "max-delta": (1e-5, PRIVATE, {**PRIVATE, "delta": 1.01e-5}),
    "share-evaluation": (False, {"evaluate": "server"}, {"evaluate": "both"}),
}
"""Limit -> its value, a run within it, and one that goes beyond it."""


def test_every_limit_is_tried():
    described = set(Study.described())
    assert described == {*WITHIN_AND_BEYOND, "data-paths"}


@pytest.mark.parametrize("limit", WITHIN_AND_BEYOND)
def test_within_a_limit_a_run_is_allowed_and_beyond_it_refused(limit):
    value, within, beyond = WITHIN_AND_BEYOND[limit]
    study = Study.model_validate({limit: value})
    refuse_beyond(study, config(**within), {"data-path": "/data"})
    if beyond is None:
        study, beyond = Study.model_validate({limit: ["0" * 64]}), {}
    with pytest.raises(ConfigError, match=rf"study file does not allow the run: {limit}: ") as no:
        refuse_beyond(study, config(**beyond), {"data-path": "/data/patients"})
    assert "/data/patients" not in str(no.value)
    assert "\n" not in str(no.value)


def test_personalisation_is_local_training_too():
    study = Study(max_local_epochs=5)
    refuse_beyond(study, config(evaluate="clients", **{"personalise-epochs": 5}), {})
    with pytest.raises(ConfigError, match=r"max-local-epochs: it is 5.*personalise-epochs=6"):
        refuse_beyond(study, config(evaluate="clients", **{"personalise-epochs": 6}), {})


def test_code_that_the_apps_hash_does_not_cover_needs_to_be_listed():
    own = config(model="nets:build")
    refuse_beyond(Study(), own, {})
    for study in (Study(own_code=[]), Study(trusted_apps=[running_app_hash()])):
        refuse_beyond(study, config(model="torchvision:resnet50"), {})
        with pytest.raises(ConfigError, match=r'own-code: nothing is allowed.*model="nets:build"'):
            refuse_beyond(study, own, {})
    both = Study(trusted_apps=[running_app_hash()], own_code=["nets:build"])
    refuse_beyond(both, own, {})


@pytest.mark.parametrize("limit", ["min-noise-multiplier", "max-epsilon", "max-delta"])
def test_a_limit_of_privacy_refuses_a_run_without(limit):
    study = Study.model_validate({limit: 0.5})
    with pytest.raises(ConfigError, match=rf'{limit}: it is 0.5, and the run has privacy="none"'):
        refuse_beyond(study, config(), {})


def test_without_a_limit_everything_is_allowed():
    refuse_beyond(Study(), config(**{"num-server-rounds": 10**6, "strategy": "feddyn"}), {})


# --- paths ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "path", "allowed"),
    [
        (OWN, "{}/images", True),
        (OWN, "{}/images/north", True),
        (OWN, "{}/images-2", False),
        (OWN, "{}/images/../patients", False),
        (OWN, "{}/images/link", False),
        ({"data-dir": "{}/images"}, "", True),
        ({"data-dir": "{}/patients"}, "", False),
        ({"dataset": "{}/images/a.npz"}, "", True),
        ({"dataset": "{}/patients/a.npz"}, "", False),
        ({"client-state-dir": "{}/patients"}, "", False),
        ({"dataset": "digits"}, "", True),
    ],
)
def test_paths_lie_within_what_is_allowed(tmp_path, values, path, allowed):
    (tmp_path / "images").mkdir()
    (tmp_path / "patients").mkdir()
    (tmp_path / "images" / "link").symlink_to(tmp_path / "patients")
    study = Study.model_validate({"data-paths": [str(tmp_path / "images")]})
    here = {key: value.format(tmp_path) for key, value in values.items()}
    asked = config(**here), {"data-path": path.format(tmp_path)}
    if allowed:
        refuse_beyond(study, *asked)
        return
    with pytest.raises(ConfigError, match="data-paths") as refused:
        refuse_beyond(study, *asked)
    assert str(tmp_path) not in str(refused.value)


# --- the file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-round = 3", "max-round: Extra inputs"),
        ("max-rounds = 0", "max-rounds: Input should be greater than or equal to 1"),
        ('max-rounds = "3"', "max-rounds: Input should be a valid integer"),
        ('privacy = ["some"]', "privacy.0: Input should be 'none', 'central' or 'local'"),
        ("max-rounds = ", "is no TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_understood_allows_nothing(tmp_path, text, said):
    path = tmp_path / "study.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="this node's study file") as refused:
        read_study(path)
    assert said in str(refused.value)
    assert str(tmp_path) not in str(refused.value)


def test_the_example_of_the_page_is_a_study_file(tmp_path):
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    example = page.partition("# /etc/fedadb/study.toml\n")[2].partition("```")[0]
    (tmp_path / "study.toml").write_text(example)
    assert read_study(tmp_path / "study.toml").max_rounds == 100


# --- in a federation ------------------------------------------------------------------------


def test_a_node_refuses_before_its_data_are_opened(federation, tmp_path, caplog):
    """Its data do not even exist: what is said is the limit."""
    nodes = {n: own_data(tmp_path / f"{n}.npz", [0, 1, 2, 3] * 3, seed=n) for n in (1, 2)}
    (tmp_path / "2.npz").unlink()
    (tmp_path / "study.toml").write_text("max-rounds = 1")
    nodes[2]["study"] = str(tmp_path / "study.toml")
    values = {**OWN, "classes": "a,b,c,d", "model": "lenet"}
    federation(nodes=nodes, **values)
    (said,) = [text for text in messages_of(caplog.records, "WARNING") if "node 2" in text]
    assert "max-rounds: it is 1, and the run has num-server-rounds=2" in said


def test_a_limit_that_is_set_in_mid_run_counts_from_the_next_message(federation, tmp_path):
    built = federation(2)
    study = tmp_path / "study.toml"
    built.grid.nodes[node_id(1)]["study"] = str(study)
    study.write_text("")
    built.grid.before_train = lambda t: t == 2 and study.write_text('strategies = ["fedadb"]')
    built.run()
    assert [row["clients"] for row in built.rows] == ["2", "1"]


# --- which code -----------------------------------------------------------------------------


def test_the_hash_is_that_of_the_code_and_changes_with_each_file(tmp_path):
    for name in ("client_app.py", "server_app.py", "fedadb_app/a/b.py", "strategies/c.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    first = app_hash(tmp_path)
    (tmp_path / "README.md").write_text("no code")
    assert app_hash(tmp_path) == first
    seen = {first}
    (tmp_path / "strategies" / "c.py").write_text("other")
    seen.add(app_hash(tmp_path))
    (tmp_path / "strategies" / "c.py").rename(tmp_path / "strategies" / "d.py")
    seen.add(app_hash(tmp_path))
    (tmp_path / "fedadb_app" / "e.py").write_text("")
    seen.add(app_hash(tmp_path))
    assert len(seen) == 4
    assert running_app_hash() == app_hash(REPOSITORY)
