"""Which runs the tables and figures are made of."""

from itertools import product

import pytest
from helpers import REPOSITORY

from fedadb_app.assignments import app_defaults
from fedadb_app.config import RunConfig
from fedadb_app.errors import ConfigError
from fedadb_app.reproduction.catalogue import STUDIES, TABLE_1_METHODS, study_of
from fedadb_app.reproduction.entries import only
from fedadb_app.reproduction.settings import DATASETS
from fedadb_app.reproduction.sweeps import SWEEPS
from strategies.registry import METHODS, read_run_config

DEVICE, SILO = "cross-device", "cross-silo"
DEFAULTS = app_defaults(REPOSITORY)
ALL = [study_of(item, scale) for item, scale in product(STUDIES, ("full", "small"))]


def names(study):
    return f"{study.item}-{'small' if study.changed else 'full'}"


def runs(study):
    """(folder, method, alpha, seed) of every run."""
    return {
        (comparison.setting.name, strategy, alpha, seed)
        for comparison in study.comparisons
        for strategy, alpha, seed in product(comparison.strategies, comparison.alphas, study.seeds)
    }


def test_every_table_and_figure_with_a_result():
    assert set(STUDIES) == {f"table{n}" for n in range(1, 7)} | {f"figure{n}" for n in range(2, 10)}


def test_every_method_of_the_paper_is_registered():
    """The app may have more."""
    assert set(TABLE_1_METHODS) <= set(METHODS)


@pytest.mark.parametrize("study", ALL, ids=names)
def test_a_study_runs_what_it_shows_and_nothing_else(study):
    shown = {
        (e.setting.name, e.strategy, e.alpha, seed) for e in study.entries for seed in study.seeds
    }
    assert runs(study) == shown
    places = [(e.setting.scenario, e.row, e.column) for e in study.entries]
    assert len(places) == len(set(places))  # no number covers another


@pytest.mark.parametrize(
    ("item", "full", "small"),
    [
        ("table1", 660, 22),  # 11 methods, 10 columns, 2 scenarios, 3 seeds
        ("table2", 330, 11),
        ("table3", 36, 12),  # 4 rows, 3 alphas and 3 seeds; small: 3 seeds
        ("table4", 36, 6),  # 6 weights, 2 data sets, 3 seeds
        ("table5", 5, 5),
        ("table6", 15, 5),
        # 7 FedADB settings and 5 FedAvg ones: anchors per class say nothing to FedAvg
        ("figure2", 36, 12),
        ("figure3", 27, 9),  # 4 keys, 3 values, one of them the same default
        ("figure4", 330, 11),
        ("figure5", 4, 4),
        ("figure6", 5, 5),
        ("figure7", 1, 1),
        ("figure8", 1, 1),
        ("figure9", 3, 1),
    ],
)
def test_numbers_of_runs(item, full, small):
    assert len(runs(study_of(item, "full"))) == full
    assert len(runs(study_of(item, "small"))) == small


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("rounds", [0, 7])
def test_what_a_setting_is_called_follows_from_its_values(scale, rounds):
    """Items share the runs of a setting, so equal values are one folder, others another."""
    by_name, by_values = {}, {}
    for item in STUDIES:
        study = study_of(item, scale)
        for entry in (study.in_rounds(rounds) if rounds else study).entries:
            values = (entry.setting.scenario, tuple(sorted(entry.setting.values.items())))
            assert by_name.setdefault(entry.setting.name, values) == values
            assert by_values.setdefault(values, entry.setting.name) == entry.setting.name
    assert not any("/" in name or " " in name for name in by_name)


def test_items_share_runs():
    small = {item: runs(study_of(item, "small")) for item in STUDIES}
    for item in ("table2", "table5", "figure4", "figure5", "figure6", "figure7", "figure9"):
        assert small[item] <= small["table1"]
    assert len(small["table4"] & small["figure2"] & small["figure3"]) == 1
    full = {item: runs(study_of(item, "full")) for item in STUDIES}
    for item in ("table2", "table5", "figure4", "figure5", "figure6", "figure7", "figure9"):
        assert full[item] <= full["table1"]
    base = {run for run in full["table3"] if run[0] == "cross-device-cifar10"}
    assert base <= full["table1"]
    assert len(base) == 18  # FedAvg and FedADB, 3 alphas, 3 seeds


@pytest.mark.parametrize("study", ALL, ids=names)
def test_settings_are_valid_for_every_method_and_as_section_5_1_has_them(study):
    small = bool(study.changed)
    for entry in study.entries:
        for strategy in {entry.strategy, "fedavg", "fedadb"}:
            read_run_config(
                {**DEFAULTS, **entry.setting.values, "strategy": strategy, "alpha": entry.alpha}
            )
        setting = entry.setting
        config, _, _ = read_run_config({**DEFAULTS, **setting.values})
        assert setting.dataset in DATASETS
        clients, fraction = {DEVICE: (100, 0.05), SILO: (20, 0.2)}[setting.scenario]
        assert (setting.clients, config.fraction_train) == (clients, fraction)
        if not small:
            assert config.num_server_rounds == (300 if setting.dataset == "organamnist" else 1000)
            assert config.model == ("googlenet" if setting.dataset == "pacs" else "auto")
        assert config.partition == ("domain" if study.item == "table6" else "dirichlet")
        assert (config.batch_size, config.momentum, config.weight_decay) == (128, 0.9, 1e-5)
        assert config.learning_rate_decay == 0.99
        if "local-epochs" not in setting.values:
            assert config.local_epochs == 5
    assert study.seeds in ((0, 1, 2), (0,))


@pytest.mark.parametrize("study", ALL, ids=names)
def test_early_models_are_kept_for_figures_7_and_8(study):
    for entry in study.entries:
        if study.item in ("figure7", "figure8"):
            values = entry.setting.values
            assert 0 < values["snapshot-every"] < values["num-server-rounds"]


def test_the_small_scale_says_what_it_changes():
    for study in ALL:
        rounds = {entry.setting.values["num-server-rounds"] for entry in study.entries}
        if not study.changed:
            continue
        for number in rounds:
            assert str(number) in study.rounds, study.item
        assert "PathMNIST" in study.changed
        assert ("PACS" in study.changed) == (study.item == "table6")
        if "LeNet" in study.changed:
            assert {entry.setting.values["model"] for entry in study.entries} == {"lenet"}


def test_the_default_of_a_sweep_is_the_apps_and_one_of_the_values_tried():
    assert {entry.setting.name for entry in study_of("figure3", "full").entries} > {
        "cross-device-cifar10"
    }
    for key, (default, tried) in SWEEPS.items():
        assert DEFAULTS[key] == default
        assert type(DEFAULTS[key]) is type(default)
        assert default in tried
        assert len(set(tried)) == 3
    assert RunConfig().learning_rate == SWEEPS["learning-rate"][0]


def test_papers_places():
    """Every cell of ours that the paper prints is beside it."""
    for study in ALL:
        if study.item in ("table1", "table3", "table4", "table6"):
            assert all(entry.reported for entry in study.entries), study.item
    cells = {e.paper for e in study_of("table3", "full").entries}
    assert ("table3", DEVICE, "use-lcb=false", "cifar10 0.05") in cells
    without_lcb = next(e for e in study_of("table3", "small").entries if e.row == "use-lcb=false")
    assert without_lcb.setting.values["fedadb.use-lcb"] is False
    assert without_lcb.reported.value == 50.22


# --- a part of a study ----------------------------------------------------------------------


def test_only_some_data_sets_methods_and_scenarios():
    table = study_of("table1", "full")
    (chosen,) = only([table], ["cifar10", "svhn", "fedadb", "cross-silo"])
    assert [(e.column, e.row, e.setting.scenario) for e in chosen.entries] == [
        (column, "fedadb", SILO)
        for column in ("svhn 0.1", "cifar10 0.05", "cifar10 0.1", "cifar10 0.2", "cifar10 0.5")
    ]
    assert only([table], []) == [table]
    (two,) = only([table], ["fedavg", "fedexp"])
    assert {e.strategy for e in two.entries} == {"fedavg", "fedexp"}


def test_an_item_without_what_is_named_is_left_out():
    """PACS has FedAvg, too, but is not the data set asked for."""
    studies = [study_of(item, "full") for item in ("table1", "table6", "figure7")]
    chosen = only(studies, ["pathmnist", "fedavg"])
    assert [study.item for study in chosen] == ["table1"]
    assert {e.column for e in chosen[0].entries} == {"pathmnist 0.1"}


def test_only_some_alphas_and_rows():
    (half,) = only([study_of("table1", "full")], ["cifar10", "alpha=0.5", "alpha=0.05"])
    assert {e.column for e in half.entries} == {"cifar10 0.05", "cifar10 0.5"}
    (row,) = only([study_of("table4", "full")], ["beta=0.3", "cifar100"])
    assert [(e.row, e.column) for e in row.entries] == [("beta=0.3", "cifar100 0.1")]


def test_nothing_is_about_all_that_is_named():
    """Each word names something, but there is no ablation in the cross-silo scenario."""
    with pytest.raises(ConfigError, match="--only use-lcb=false,cross-silo: nothing there"):
        only([study_of("table1", "full"), study_of("table3", "full")], ["use-lcb=false", SILO])


@pytest.mark.parametrize(
    "word", ["cifar", "FedADB", "pacs", "fedprox", "0.1", "alpha=0.3", "beta=0.1"]
)
def test_only_what_there_is(word):
    with pytest.raises(ConfigError) as caught:
        only([study_of("table1", "full")], ["svhn", word])
    message = str(caught.value)
    assert f"--only {word}: no such" in message
    for known in ("svhn", "tissuemnist", "fedavg", "cross-device", "cross-silo"):
        assert known in message


def test_other_rounds_are_other_runs():
    study = study_of("table4", "small").in_rounds(3)
    assert {e.setting.values["num-server-rounds"] for e in study.entries} == {3}
    assert runs(study).isdisjoint(runs(study_of("table4", "small")))
    assert study.differences.endswith("All runs have 3 rounds.")
    assert "20 rounds" not in study.differences
    assert study_of("table4", "full").in_rounds(1).differences == "All runs have 1 round."


def test_an_item_that_is_none():
    with pytest.raises(ConfigError, match=r"figure1 is none of table1, .*figure9"):
        study_of("figure1", "small")
