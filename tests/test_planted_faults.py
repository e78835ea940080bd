"""The list of planted faults is one that planted_faults.py can plant."""

import re

import pytest
from helpers import REPOSITORY
from planted_faults import Fault, planted_faults


@pytest.mark.parametrize("fault", planted_faults(), ids=lambda fault: fault.says)
def test_the_text_to_replace_stands_there_once(fault):
    assert fault.planted_in(REPOSITORY)
    assert all((REPOSITORY / test).exists() for test in fault.tests)


def test_the_page_lists_them():
    page = (REPOSITORY / "docs" / "testing.md").read_text()
    listed = re.findall(r"^- \*\*(.+)\*\*$|^  - (.+)$", page.partition("By room:")[2], re.MULTILINE)
    room, said = "", []
    for heading, text in listed:
        room = heading or room
        said += [f"{room}: {text}"] if text else []
    assert said == [fault.says for fault in planted_faults()]


def test_a_text_that_is_not_there_is_an_error():
    fault = Fault("nothing", "strategies/fedavg.py", "no such text", "", ())
    with pytest.raises(ValueError, match="0 times"):
        fault.planted_in(REPOSITORY)
