"""No patient on both sides, by folders, lists or headers; duplicates are told."""

import numpy as np
import pytest
from data.intake.conftest import noise
from hypothesis import given
from hypothesis import strategies as st

from fedadb_app.data.arrays import held_out
from fedadb_app.data.intake.division import held_out_patients


def ward(hospital, patients=10, shots=3, nested=""):
    for position, label in enumerate("ab"):
        for p in range(patients):
            for s in range(shots):
                hospital.image(f"{label}/p{position * patients + p:02}/{nested}{s}.png")


@pytest.mark.parametrize("nested", ["", "study/", "study/series/"])
def test_folders_below_a_class_are_held_out_whole(hospital, nested):
    ward(hospital, nested=nested)
    report, made = hospital.take_in()
    assert not set(made["train_patients"]) & set(made["test_patients"])
    assert report.parts["test"].per_class == {"a": 6, "b": 6}  # two of ten patients each
    assert report.parts["test"].patients == 4
    assert "60 files, are taken for patients" in report.patients


def test_a_patient_of_two_classes_is_one_patient(hospital):
    ward(hospital)
    for s in range(3):
        hospital.image(f"b/p00/x{s}.png")
    _, made = hospital.take_in()
    assert not set(made["train_patients"]) & set(made["test_patients"])


def test_where_patients_are_not_known_it_is_said(hospital):
    hospital.fill("a", "b")
    report, made = hospital.take_in()
    assert "not known of 10 files" in report.patients
    assert "train_patients" not in made
    assert report.parts["train"].patients is None


def test_some_known_some_not(hospital):
    ward(hospital)
    hospital.fill("a", count=2)
    report, made = hospital.take_in()
    assert "not known of 2 files" in report.patients
    assert not set(made["train_patients"]) & set(made["test_patients"])


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("{patient}_*", "p{}_{}_left.png"),
        ("{patient}-?", "p{}-{}.png"),
        ("scan_{patient}_*", "scan_p{}_{}_x_y.png"),
        ("*_{patient}", "{1}_p{0}.png"),
        ("IMG[{patient}]*", "IMG[p{}]{}.png"),
        ("Müller{patient}.*", "Mu\u0308ller{}.{}.png"),
    ],
)
def test_patients_by_the_names_of_files(hospital, pattern, name):
    for label, first in (("a", 10), ("b", 20)):
        for p in range(10):
            for s in range(3):
                hospital.image(f"{label}/{name.format(first + p, s)}")
    report, made = hospital.take_in(patient_pattern=pattern)
    assert not set(made["train_patients"]) & set(made["test_patients"])
    counts = np.bincount(np.concatenate([made["train_patients"], made["test_patients"]]))
    assert counts.tolist() == [3] * 20
    assert report.parts["test"].per_class == {"a": 6, "b": 6}
    assert report.patients == "as patient-pattern finds them in the names of 60 files"


def test_a_pattern_that_fits_some_files(hospital):
    ward(hospital)
    hospital.image("a/p00/shot_7.png")
    report, made = hospital.take_in(patient_pattern="shot_{patient}")
    assert "as patient-pattern finds them in the names of 1 files" in report.patients
    assert "the folders below the class folders, of 60 files" in report.patients
    assert "not in the names of 60 files (as a/p00/0.png)" in report.patients
    assert len({*made["train_patients"], *made["test_patients"]}) == 21


def test_a_pattern_that_fits_no_file_is_refused(hospital):
    hospital.fill("a", "b")
    hospital.refused(
        'patient-pattern="{patient}_*" is in the name of none of 10 files (as a/00.png',
        patient_pattern="{patient}_*",
    )


def test_a_named_patient_in_both_parts_is_an_error(hospital):
    for part in ("train", "test"):
        for label in "ab":
            hospital.image(f"{part}/{label}/{label}1_0.png")
    report, _ = hospital.take_in(patient_pattern="{patient}_*")
    assert report.errors[0].startswith("2 patients have images in the training and in the test")


def test_folders_in_both_parts_are_a_warning(hospital):
    for part in ("train", "test"):
        for label in "ab":
            hospital.image(f"{part}/{label}/2024/0.png")
    report, _ = hospital.take_in()
    assert any(
        "1 folders below the class folders are in the training" in w for w in report.warnings
    )


def test_nothing_to_hold_out_is_said(hospital):
    for label in "ab":
        for i in range(3):
            hospital.image(f"{label}/one/{i}.png")
    hospital.refused("no class can spare a patient")


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=80),
)
def test_the_division_never_parts_a_patient_nor_empties_a_class(pairs):
    labels, patients = (np.array(x, np.int64) for x in zip(*pairs, strict=True))
    marked = held_out_patients(labels, patients)
    assert not set(patients[marked]) & set(patients[~marked])
    assert set(labels[~marked]) == set(labels)


@given(st.lists(st.integers(0, 4), max_size=60))
def test_without_patients_it_is_every_fifth(labels):
    values = np.array(labels, np.int64)
    assert np.array_equal(held_out_patients(values, None), held_out(values))


def test_about_a_fifth_of_each_class_is_held_out():
    rng = np.random.default_rng(0)
    patients = rng.integers(0, 200, 2000)
    labels = rng.integers(0, 3, 2000)
    marked = held_out_patients(labels, patients)
    shares = np.bincount(labels[marked]) / np.bincount(labels)
    assert (np.abs(shares - 0.2) < 0.03).all()


# --- duplicates -------------------------------------------------------------------------------


def test_one_picture_under_two_labels_is_an_error(hospital):
    hospital.fill("a", "b")
    for name in ("a/copy.png", "b/copy.bmp", "b/copy2.png"):  # as another format, too
        hospital.image(name, noise(999))
    report, _ = hospital.take_in()
    (error,) = report.errors
    assert "3 images are there under more than one label (1 different pictures" in error


def test_one_picture_twice_under_one_label_is_a_warning(hospital):
    hospital.fill("a", "b")
    colour = np.repeat(noise(999)[..., None], 3, 2)
    hospital.image("a/05.png", noise(999))
    hospital.image("a/06.png", colour)  # grey, as RGB
    report, _ = hospital.as_node()
    assert not report.errors
    (warning,) = report.warnings
    assert "2 images are there more than once under one label" in warning


def test_a_training_image_in_the_test_part_is_told(hospital):
    for part in ("train", "test"):
        hospital.fill(f"{part}/a", f"{part}/b", count=2)
        hospital.image(f"{part}/a/x.png", noise(999))
    report, _ = hospital.take_in()
    assert any("1 pictures are in the training and in the test part" in w for w in report.warnings)


def test_turned_or_scaled_copies_are_others(hospital):
    hospital.fill("a", "b")
    hospital.image("a/x.png", noise(999))
    hospital.image("b/x.png", noise(999)[::-1].copy())
    hospital.image("b/y.png", noise(999).reshape(14, 56))
    report, _ = hospital.as_node()
    assert not report.errors
    assert not report.warnings


def test_blank_images_are_counted_apart(hospital):
    hospital.fill("a", "b")
    for name in ("a/x.png", "b/x.png", "b/y.png"):
        hospital.image(name, np.full((28, 28), 7, np.uint8))
    report, _ = hospital.take_in()
    assert not report.errors
    assert report.warnings == ["3 images are of a single colour (as a/x.png)"]
