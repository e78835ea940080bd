"""paper.csv against numbers typed by hand from the paper's tables."""

import statistics

import pytest

from fedadb_app.reproduction.catalogue import TABLE_1_METHODS
from fedadb_app.reproduction.paper import Reported, reported

DEVICE, SILO = "cross-device", "cross-silo"


def of(item):
    return {place[1:]: number for place, number in reported().items() if place[0] == item}


@pytest.mark.parametrize(
    ("place", "value", "deviation"),
    [
        (("table1", DEVICE, "fedavg", "svhn 0.1"), 84.56, 1.57),
        (("table1", DEVICE, "fedavg", "organamnist 0.1"), 26.68, 2.78),
        (("table1", DEVICE, "feddyn", "cifar10 0.2"), 66.91, 1.91),
        (("table1", DEVICE, "fedntd", "cinic10 0.1"), 41.78, 0.75),
        (("table1", DEVICE, "fedgela", "cifar100 0.1"), 35.45, 1.28),
        (("table1", DEVICE, "fedadb", "pathmnist 0.1"), 79.08, 0.53),
        (("table1", DEVICE, "fedadb", "cifar10 0.05"), 50.06, 0.61),
        (("table1", SILO, "fedasam", "svhn 0.1"), 93.00, 0.36),
        (("table1", SILO, "fedsol", "cifar10 0.5"), 72.75, 0.13),
        (("table1", SILO, "fedadb", "tissuemnist 0.1"), 41.45, 0.50),
        (("table3", DEVICE, "fedavg", "cifar10 0.05"), 33.87, None),
        (("table3", DEVICE, "use-anchors=false", "cifar10 0.1"), 50.32, None),  # w/o CAG
        (("table3", DEVICE, "use-lcb=false", "cifar10 0.2"), 58.71, None),  # w/o LCB
        (("table4", DEVICE, "beta=0.3", "cifar10 0.1"), 55.32, None),
        (("table4", DEVICE, "beta=0.9", "cifar100 0.1"), 56.61, None),
        (("table4", DEVICE, "beta=dynamic", "cifar100 0.1"), 57.70, None),
        (("table5", DEVICE, "fedlmd", "lambda1"), 298, None),
        (("table5", DEVICE, "fedavg", "lambda1/lambda5"), 2.41, None),
        (("table5", DEVICE, "fedadb", "training accuracy"), 74.78, None),
        (("table6", SILO, "fedlmd", "pacs"), 48.71, 1.03),
    ],
)
def test_numbers_as_printed(place, value, deviation):
    assert reported()[place] == Reported(value, deviation)


def test_every_cell_is_there():
    # 11 methods, 10 columns, 2 scenarios; 4 rows, 3 alphas; 6 weights, 2 data sets; 3 x 5; 5
    tables = {"table1": 220, "table3": 12, "table4": 12, "table5": 15, "table6": 5}
    assert {item: len(of(item)) for item in tables} == tables
    assert {place[0] for place in reported()} == {*tables, "table2"}
    assert {row for _, row, _ in of("table1")} == set(TABLE_1_METHODS)


AVERAGES = {  # Table 1's last column: means of the values and of the deviations
    DEVICE: {
        "fedavg": (49.87, 1.97),
        "feddyn": (55.13, 1.72),
        "fedasam": (53.57, 1.69),
        "fedntd": (55.88, 1.20),
        "fedgela": (53.77, 1.65),
        "fedexp": (54.52, 0.75),
        "fedlmd": (55.45, 0.90),
        "feddecorr": (57.03, 0.97),
        "fedacg": (53.71, 1.50),
        "fedsol": (55.47, 0.88),
        "fedadb": (63.81, 0.66),
    },
    SILO: {
        "fedavg": (60.00, 0.60),
        "feddyn": (60.03, 0.59),
        "fedasam": (62.42, 0.94),
        "fedntd": (61.12, 0.83),
        "fedgela": (57.63, 1.14),
        "fedexp": (60.88, 0.50),
        "fedlmd": (61.03, 0.58),
        "feddecorr": (60.50, 0.68),
        "fedacg": (59.80, 1.03),
        "fedsol": (60.58, 0.78),
        "fedadb": (67.13, 0.48),
    },
}


@pytest.mark.parametrize("scenario", AVERAGES)
@pytest.mark.parametrize("method", TABLE_1_METHODS)
def test_rows_of_table_1_average_to_what_the_paper_prints(scenario, method):
    row = [n for (s, m, _), n in of("table1").items() if (s, m) == (scenario, method)]
    average, deviation = AVERAGES[scenario][method]
    assert statistics.mean(n.value for n in row) == pytest.approx(average, abs=0.0051)
    assert statistics.mean(n.deviation for n in row) == pytest.approx(deviation, abs=0.0051)


# --- Table 2 --------------------------------------------------------------------------------


def rounds(method, column):
    return of("table2")[DEVICE, method, column].value


@pytest.mark.parametrize(
    ("column", "method", "number", "speedup"),
    [
        ("svhn 0.1 42", "fedavg", 274, 13.7),  # "27413.7"
        ("svhn 0.1 80", "fedavg", 478, 9.56),  # section 5.3
        ("svhn 0.1 42", "fedgela", 80, 4.0),  # "804.0"
        ("cinic10 0.1 20", "fedgela", 93, 13.3),
        ("cifar10 0.05 25", "fedexp", 73, 2.7),
        ("cifar10 0.1 58", "feddecorr", 486, 3.1),
        ("cifar10 0.5 35", "fedntd", 8, 1.1),  # "81.1"
        ("cifar100 0.1 43", "fedlmd", 747, 7.2),
        ("organamnist 0.1 67", "fedexp", 208, 4.1),
        ("pathmnist 0.1 52", "fedacg", 235, 9.0),
        ("tissuemnist 0.1 20", "fedacg", 411, 411.0),
        ("tissuemnist 0.1 20", "fedsol", 33, 33.0),
    ],
)
def test_rounds_and_speedups_as_printed(column, method, number, speedup):
    assert rounds(method, column) == number
    assert number / rounds("fedadb", column) == pytest.approx(speedup, abs=0.051)


def test_speedups_average_to_what_the_paper_prints():
    average = {}
    for method in TABLE_1_METHODS[:-1]:
        columns = [column for _, row, column in of("table2") if row == method]
        average[method] = statistics.mean(rounds(method, c) / rounds("fedadb", c) for c in columns)
    printed = (7.4, 7.5, 20.6, 4.2, 5.7, 7.2, 4.0, 6.8, 27.7, 3.9)
    assert list(average.values()) == pytest.approx(printed, abs=0.06)


def test_what_is_never_reached_is_not_there():
    table = of("table2")
    assert (DEVICE, "fedasam", "svhn 0.1 80") not in table
    assert [row for _, row, column in table if column == "cifar10 0.05 46"] == ["fedadb"]
    assert [row for _, row, column in table if column == "organamnist 0.1 67"] == [
        "fedexp",
        "fedadb",
    ]
    assert (DEVICE, "fedavg", "tissuemnist 0.1 20") not in table
