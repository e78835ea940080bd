"""What is installed, and what the machine has."""

import re
import sys
from collections import namedtuple
from dataclasses import replace
from importlib import metadata

import pytest
from node_check.superlinks import fails, installed

from fedadb_app.config import RunConfig
from fedadb_app.node_check import machine


def test_versions_in_range(settings, monkeypatch):
    installed(monkeypatch, requires=["flwr[simulation]>=1.42", "nosuch>=1; extra == 'dev'"])
    version = ".".join(map(str, sys.version_info[:3]))
    assert machine.check_versions(settings).startswith(f"Python {version}, flwr 1.42")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"python": ">=4"}, f"Python {sys.version_info[0]}.{sys.version_info[1]}"),
        ({"requires": ["flwr>=99"]}, "flwr 1.42.0 (>=99 is needed): run pip install ."),
        ({"requires": ["nosuchpackage>=1"]}, "nosuchpackage is missing (>=1 is needed)"),
    ],
)
def test_versions_out_of_range(settings, monkeypatch, changes, said):
    installed(monkeypatch, **changes)
    assert said in fails(machine.check_versions, settings)


def test_an_app_that_is_not_installed(settings, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert "the app is not installed here" in fails(machine.check_versions, settings)


def test_memory(settings, monkeypatch):
    available = namedtuple("available", "available")
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: available(3 * 2**30))
    assert machine.check_memory(settings) == "3.0 GiB free"
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: available(3 * 2**29))
    assert fails(machine.check_memory, settings) == (
        "1.5 GiB free, but 2 GiB are needed: end other programs"
    )


def test_disk(settings, monkeypatch, tmp_path):
    home = tmp_path / "not" / "yet"
    todo = "set FLWR_HOME to a folder elsewhere"
    monkeypatch.setenv("FLWR_HOME", str(home))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(3 * 2**30))
    assert f"3.0 GiB free for {home}; 3.0 GiB free for " in machine.check_disk(settings)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(2**29))
    assert fails(machine.check_disk, settings) == (
        f"0.5 GiB free for {home}, but 1 GiB are needed: {todo}"
    )
    monkeypatch.setattr(machine.os, "access", lambda path, mode: path != tmp_path)
    assert fails(machine.check_disk, settings) == (
        f"{home} is needed, but this user may not write to {tmp_path}: {todo}"
    )


def test_device(settings):
    assert machine.check_device(settings).startswith("cpu, ")
    config = RunConfig(device="cuda:99")
    assert 'device="cuda:99" is not available' in fails(
        machine.check_device, replace(settings, config=config)
    )


def test_images_that_a_node_keeps_for_validation_are_counted(settings):
    config = settings.config.model_copy(update={"evaluate": "clients", "validation": "0.25"})
    said = machine.check_data(replace(settings, config=config))
    assert said.startswith("300 training images")
    assert said.endswith("3 75; held out: 80; for validation: 100")


def test_data(settings):
    assert machine.check_data(settings) == (
        "400 training images of 28x28 pixels and 1 channel(s); "
        "per class: 0 100, 1 100, 2 100, 3 100; held out: 80"
    )
    settings = replace(settings, node_config={"data-path": "/nowhere/at/all"})
    assert "/nowhere/at/all" in fails(machine.check_data, settings)


def test_a_part_of_a_public_data_set(settings, quadrants):
    """The parts of an IID partition share out 400 images, 100 of each class."""
    config = RunConfig(dataset=quadrants, partition="iid", device="cpu")
    total = [0] * 4
    for part in range(3):
        node_config = {"partition-id": part, "num-partitions": 3}
        said = machine.check_data(replace(settings, config=config, node_config=node_config))
        for label, count in re.findall(r"(\d) (\d+)(?:, |;)", said.split("per class: ")[1]):
            total[int(label)] += int(count)
    assert total == [100] * 4


@pytest.mark.parametrize(
    ("node_config", "sentence"),
    [
        ({}, "this SuperNode has no data: start it with --node-config 'partition-id=0"),
        ({"partition-id": 0}, "this SuperNode has no data: start it with --node-config 'part"),
        ({"partition-id": 3, "num-partitions": 3}, "--node-config: partition-id=3 is not between"),
        ({"partition-id": "x", "num-partitions": 3}, "--node-config: partition-id=x and num-part"),
    ],
)
def test_a_node_that_names_no_part_of_a_public_data_set(settings, node_config, sentence):
    public = replace(settings, config=RunConfig(device="cpu"), node_config=node_config)
    assert fails(machine.check_data, public).startswith(sentence)


def test_a_node_that_names_no_data_of_its_own(settings):
    said = fails(machine.check_data, replace(settings, node_config={}))
    assert said.startswith('--node-config: data-path="" is not the absolute path of its own images')
