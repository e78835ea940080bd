"""The list of planted faults is one that planted_faults.py can plant."""

import pytest
from helpers import REPOSITORY
from planted_faults import Fault, planted_faults


@pytest.mark.parametrize("fault", planted_faults(), ids=lambda fault: fault.says)
def test_the_text_to_replace_stands_there_once(fault):
    assert fault.planted_in(REPOSITORY)
    assert all((REPOSITORY / test).exists() for test in fault.tests)


def test_a_text_that_is_not_there_is_an_error():
    fault = Fault("nothing", "strategies/fedavg.py", "no such text", "", ())
    with pytest.raises(ValueError, match="0 times"):
        fault.planted_in(REPOSITORY)
