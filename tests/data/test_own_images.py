"""What the configuration decides about a user's own images, for the server and at a node."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from image_files import reopen
from PIL import Image

from fedadb_app.client_context import at_this_node
from fedadb_app.config import RunConfig
from fedadb_app.data.clients import (
    PartitionClaim,
    SampleCounts,
    client_data,
    dataset_of,
    image_schema,
    partition_counts,
    partition_of,
    validation_rows,
)
from fedadb_app.data.intake.report import IntakeError
from fedadb_app.data.sources import open_node_data
from fedadb_app.errors import ConfigError, DataError
from fedadb_app.settings import validate

pytestmark = pytest.mark.usefixtures("own_cache")

CLASSES = ("benign", "carcinoma, NOS")


def hospital(root, classes=CLASSES, count=10, patients=0, size=(28, 28)):
    rng = np.random.default_rng(0)
    for name in classes:
        for i in range(count):
            where = root / name / (f"p{name[0]}{i % patients}" if patients else "")
            where.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(where / f"{i:02}.png")
    return root


def test_names_with_a_comma_have_semicolons_between():
    config = RunConfig(classes="benign; carcinoma, NOS", image_shape="1x28x28")
    assert config.class_names == CLASSES
    assert RunConfig(classes="a, b,c", image_shape="1x28x28").class_names == ("a", "b", "c")


def test_a_node_with_such_a_class(tmp_path):
    config = RunConfig(classes="benign;carcinoma, NOS", image_shape="1x28x28")
    data = open_node_data(hospital(tmp_path / "h"), image_schema(config))
    assert data.class_names == CLASSES
    commas = RunConfig(classes="benign,carcinoma, NOS", image_shape="1x28x28")
    with pytest.raises(DataError, match="a name with a comma needs semicolons"):
        open_node_data(tmp_path / "h", image_schema(commas))


def test_a_class_name_in_either_unicode_form():
    apart = RunConfig(classes="O\u0308dem,b", image_shape="1x28x28")
    assert apart.class_names == ("\u00d6dem", "b")


def test_a_users_own_data_set_gets_the_shape_that_is_stated(tmp_path):
    root = hospital(tmp_path / "h", size=(300, 200))
    config = RunConfig(dataset=str(root), image_shape="3x64x48", resize="crop")
    assert dataset_of(config).image_shape == (3, 64, 48)
    assert image_schema(config).image_shape == (3, 64, 48)
    with pytest.raises(ConfigError, match="need both"):
        validate(RunConfig, {"dataset": "digits", "image-shape": "3x64x48"})


@pytest.mark.parametrize(
    ("key", "value"),
    [("intensity", "9,1"), ("frames", "all"), ("resize", "none"), ("ignore", 3)]
    + [("patient-pattern", x) for x in ("p*", "{patient}*", "?{patient}", "a/{patient}", "{name}")],
)
def test_decisions_that_are_none(key, value):
    with pytest.raises(ConfigError, match=key):
        validate(RunConfig, {key: value})


def test_a_node_decides_about_its_own_files():
    config = RunConfig(classes="a,b", image_shape="1x28x28", ignore="*.xml")

    def node(**own):
        return at_this_node(Context(0, 0, own, RecordDict(), {}), config)

    assert node(intensity="0,4095").intake.intensity == "0,4095"
    assert node(frames="each").intake.ignore == "*.xml"
    assert node(**{"patient-pattern": "{patient}_*"}).intake.patient_pattern == "{patient}_*"
    assert node() == config
    assert node(resize="crop").resize == "fit"  # the federation's
    with pytest.raises(ConfigError, match='frames="some" is not allowed'):
        node(frames="some")


def test_data_with_errors_are_prepared_once_and_refused_each_time(tmp_path):
    root = hospital(tmp_path / "h", count=3)
    copy = (root / "benign" / "00.png").read_bytes()
    (root / CLASSES[1] / "copy.png").write_bytes(copy)
    for _ in range(2):
        with pytest.raises(IntakeError, match="more than one label") as caught:
            reopen(str(root), "")
        assert caught.value.report.parts["train"].images > 0
    (root / CLASSES[1] / "copy.png").unlink()
    assert reopen(str(root), "").num_classes == 2


def test_no_client_evaluates_on_a_patient_whom_another_trains_on(tmp_path):
    root = hospital(tmp_path / "h", count=60, patients=12)
    config = RunConfig(dataset=str(root), evaluate="clients", partition="iid")
    dataset = dataset_of(config)
    partition = partition_of(config, 3)
    counts = partition_counts(config, partition)
    trained, kept = set(), set()
    for client in range(3):
        data = client_data(config, PartitionClaim(client, 3), "cpu")
        trained |= set(dataset.train_patients[data.train.positions.numpy()])
        kept |= set(dataset.train_patients[data.held_out.positions.numpy()])
        assert data.counts == counts[client]
    assert kept
    assert not trained & kept


def test_patients_of_a_folder_are_on_one_side(tmp_path):
    root = hospital(tmp_path / "h", ("a", "b"), count=60, patients=12)
    config = RunConfig(dataset=str(root), partition="iid", validation="0.2", evaluate="both")
    made = dataset_of(config)
    dealt = np.concatenate(partition_of(config, 2).indices)
    assert len(made.train_patients[validation_rows(config)])
    trained = set(made.train_patients[dealt])
    assert trained.isdisjoint(made.train_patients[validation_rows(config)])
    assert made.test_patients is not None
    assert len(made.test_patients) == len(made.test_labels)


def test_the_sites_of_a_label_list_are_clients(tmp_path):
    """By hand: 12 images of the north, 16 of the south, 20 of the west; the split is stated."""
    root = hospital(tmp_path / "h", ("a", "b"), count=30)
    files = [f"{name}/{i:02}.png" for i in range(30) for name in "ab"]
    sites = ["north"] * 12 + ["south"] * 16 + ["west"] * 20
    lines = [f"{file},{site},train" for file, site in zip(files[:48], sites, strict=True)]
    lines += [f"{file},north,test" for file in files[48:]]
    (root / "labels.csv").write_text("\n".join(["file,site,split", *lines]))
    config = RunConfig(dataset=str(root), partition="natural")
    sizes = [len(part) for part in partition_of(config, 3).indices]
    assert sizes == [12, 16, 20]
    assert partition_counts(config, partition_of(config, 3))[2] == SampleCounts(20, 0)
    with pytest.raises(DataError, match="a client for each of the 3 domains; there are 2"):
        partition_of(config, 2)


def test_a_nodes_patients_are_held_out_whole(tmp_path):
    root = hospital(tmp_path / "h", ("a", "b"), count=60, patients=12)
    config = RunConfig(dataset="nodes", classes="a,b", image_shape="1x28x28", evaluate="clients")
    data = client_data(config, root, "cpu")
    patients = open_node_data(root, image_schema(config), config.intake).train_patients
    trained = set(patients[data.train.positions.numpy()])
    kept = set(patients[data.held_out.positions.numpy()])
    assert len(kept) == 4  # of 24
    assert not trained & kept


def test_the_digest_is_that_of_the_content(tmp_path):
    one = reopen(str(hospital(tmp_path / "one")), "").digest
    two = reopen(str(hospital(tmp_path / "two")), "").digest
    assert one == two
    hospital(tmp_path / "two", count=11)
    assert reopen(str(tmp_path / "two"), "").digest != one


@pytest.mark.parametrize("stem", ["my images", "R\u00f6ntgen", "scan(1)", "a" * 300, "[x]"])
def test_a_name_that_is_made_up_is_one_that_may_be_given(stem):
    config = RunConfig(dataset=f"/data/{stem}")
    assert validate(RunConfig, {"run-name": config.short_name}).run_name == config.short_name
    assert len(config.short_name) < 80
