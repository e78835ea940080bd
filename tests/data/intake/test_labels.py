"""The label list: what each wrong line is answered with, and what each right column does."""

import numpy as np
import pytest


def write(hospital, text, encoding="utf-8"):
    hospital.path("labels.csv").write_bytes(text.encode(encoding))


def scans(hospital, count=10, where=""):
    for i in range(count):
        hospital.image(f"{where}{i}.png")


def listed(*rows, header="file,label"):
    return "\n".join([header, *rows]) + "\n"


def ten(label=lambda i: "ab"[i % 2], **columns):
    rows = [",".join([f"{i}.png", label(i), *(f(i) for f in columns.values())]) for i in range(10)]
    return listed(*rows, header=",".join(["file", "label", *columns]))


def test_labels_come_from_the_list(hospital):
    scans(hospital)
    write(hospital, ten())
    report, made = hospital.take_in()
    assert report.class_names == ["a", "b"]
    assert made["train_labels"].tolist() == [0] * 4 + [1] * 4
    assert made["test_labels"].tolist() == [0, 1]
    assert "labels are those of labels.csv" in report.layout
    assert report.left_out == {}


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_as_spreadsheets_write_it(hospital, separator, encoding):
    scans(hospital)
    text = ten(lambda i: ["benign", "Ödem"][i % 2]).replace(",", separator).replace("\n", "\r\n")
    write(hospital, text, encoding)
    assert hospital.take_in()[0].class_names == ["benign", "Ödem"]


def test_a_name_with_a_comma_in_quotes(hospital):
    scans(hospital)
    write(hospital, ten(lambda i: ['"carcinoma, NOS"', "benign"][i % 2]))
    assert hospital.take_in()[0].class_names == ["benign", "carcinoma, NOS"]


def test_the_images_may_lie_below_in_folders_that_mean_nothing(hospital):
    scans(hospital, where="2024/pacs/")
    rows = [f"2024{'/' if i else chr(92)}pacs/{i}.png,{'ab'[i % 2]}" for i in range(10)]
    write(hospital, listed(*rows))
    assert hospital.take_in()[0].images == 10


def test_labels_may_come_from_folders_and_patients_from_the_list(hospital):
    hospital.fill("a", "b")
    rows = [f"{c}/{i:02}.png,p{c}{i // 2}" for c in "ab" for i in range(5)]
    write(hospital, listed(*rows, header="file,patient"))
    report, made = hospital.take_in()
    assert report.class_names == ["a", "b"]
    assert not set(made["train_patients"]) & set(made["test_patients"])


def test_a_split_is_kept(hospital):
    scans(hospital)
    splits = ["Training", "valid", "test"]
    write(hospital, ten(split=lambda i: splits[i % 3]))
    _, made = hospital.take_in()
    assert len(made["test_labels"]) == 3
    assert len(made["train_labels"]) == 7


def test_sites_are_domains(hospital):
    scans(hospital)
    write(hospital, ten(site=lambda i: f"site{i // 5}", split=lambda i: ["train", "test"][i == 9]))
    report, made = hospital.take_in()
    assert made["train_labels"].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert made["train_domains"].tolist() == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert "2 sites are the domains" in report.layout


def test_patients_are_never_divided(hospital):
    scans(hospital, 40)
    rows = [f"{i}.png,{'ab'[i // 4 % 2]},p{i // 4}" for i in range(40)]
    write(hospital, listed(*rows, header="file,label,patient"))
    report, made = hospital.take_in()
    assert not set(made["train_patients"]) & set(made["test_patients"])
    assert report.parts["test"].patients == 2
    assert report.parts["test"].per_class == {"a": 4, "b": 4}
    assert "stated by the label list for 40 files" in report.patients


def test_a_patient_in_both_parts_of_a_stated_split_is_an_error(hospital):
    scans(hospital)
    write(hospital, ten(patient=lambda i: f"p{i % 3}", split=lambda i: ["train", "test"][i > 7]))
    report, _ = hospital.take_in()
    (error,) = report.errors
    assert error.startswith("2 patients have images in the training and in the test part")


def test_blank_lines_and_a_line_twice_are_harmless(hospital):
    scans(hospital)
    write(hospital, ten() + "\n\n0.png,a\n")
    assert hospital.take_in()[0].images == 10


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("11.png,a", ["line 12", 'no image "11.png"', 'mean "1']),
        ("0.png,b", ["line 12", "0.png is listed in line 2 already", 'label "a" and not "b"']),
        (",a", ["line 12", "no file is named"]),
        ("0.png,a,b", ["line 12", "3 columns", "header has 2", "double quotes"]),
        ('"0.png,a', ["line 12"]),
        ("../secret.png,a", ["line 12", "no image"]),
        ("/etc/passwd,a", ["line 12", "no image"]),
    ],
)
def test_a_wrong_line_has_its_number_in_the_sentence(hospital, line, words):
    scans(hospital)
    write(hospital, ten() + line + "\n")
    hospital.refused("labels.csv", *words)


def test_a_label_that_the_federation_does_not_know(hospital):
    scans(hospital)
    write(hospital, ten(lambda i: ["benign", "malingant"][i % 2]))
    hospital.refused(
        'labels.csv, line 3: the label "malingant" is none of the federation\'s classes',
        'did you mean "malignant"?',
        class_names=("benign", "malignant"),
        image_shape=(1, 28, 28),
    )


def test_a_label_that_is_missing(hospital):
    scans(hospital)
    write(hospital, ten(lambda i: "a" if i else ""))
    hospital.refused("labels.csv, line 2", "0.png has no label")


def test_a_wrong_split(hospital):
    scans(hospital)
    write(hospital, ten(split=lambda i: "train" if i else "trian"))
    hospital.refused('line 2: split="trian" is none of train, val, test')


@pytest.mark.parametrize(
    "header", ["label,image", "file,label,label", "file,label,age", "", "a.png,benign"]
)
def test_a_wrong_header(hospital, header):
    scans(hospital)
    write(hospital, header + "\n0.png,a\n")
    hospital.refused("labels.csv, line 1")


def test_what_is_no_text(hospital):
    scans(hospital)
    hospital.path("labels.csv").write_bytes(b"file,label\n0.png,R\xf6ntgen\n")
    hospital.refused("labels.csv cannot be read as UTF-8 text")


def test_an_empty_list(hospital):
    scans(hospital)
    write(hospital, "file,label\n")
    hospital.refused("lists no file")


def test_images_that_are_not_listed_are_counted(hospital):
    scans(hospital, 13)
    write(hospital, ten())
    hospital.refused("3 files are not read: 3 not in labels.csv", "10.png")
    assert hospital.take_in(ignore="1?.png")[0].images == 10


def test_a_listed_file_that_is_no_image(hospital):
    scans(hospital)
    (hospital.root / "3.png").write_bytes(b"no image")
    write(hospital, ten())
    hospital.refused("3.png cannot be read")


def test_every_image_keeps_its_label(hospital):
    values = np.random.default_rng(1).permutation(40)
    rows = []
    for i, value in enumerate(values):
        hospital.image(f"{i}.png", np.full((28, 28), value, np.uint8) + np.eye(28, dtype=np.uint8))
        rows.append(f"{i}.png,{'abc'[value % 3]}")
    write(hospital, listed(*rows))
    _, made = hospital.take_in()
    for part in ("train", "test"):
        assert np.array_equal(made[f"{part}_images"][:, 0, 0, 1] % 3, made[f"{part}_labels"])
