"""docs/deploy.md's table of failures: one run, in each of whose rounds something else goes wrong.

Three SuperNodes reach their SuperLink through a proxy; client 1 is hostile or unlucky, the others
are honest. Client 1's SuperNode and the SuperLink fail when its deeds tell them to.
"""

import contextlib
import re
import time
from dataclasses import dataclass, field

import pytest
from flower.faulty import command, supernode
from flower.faulty import superlink as faulty_superlink
from flower.relay import Relay
from flower.superlink import SuperLink
from helpers import REPOSITORY
from safetensors.torch import load_file

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

UNREADABLE, TOO_LARGE = "its reply cannot be read: ", "its reply was refused before it was unpacked"


@dataclass(frozen=True)
class Case:
    """What client 1 does in a round, the row of the page that says so, and what is then logged."""

    deed: str
    row: str
    said: str = ""  # of client 1, whose update is not used; "": it is
    log: str = ""


NO_MESSAGE = "a reply, of whatever kind, is no message: no protobuf, no array, wrong object ids"
CASES = [
    Case("no protobuf", NO_MESSAGE, f"{UNREADABLE}DecodeError: "),
    Case("no array", NO_MESSAGE, f"{UNREADABLE}JSONDecodeError: "),
    Case("other objects", NO_MESSAGE, UNREADABLE),
    Case("cut", NO_MESSAGE, f"{UNREADABLE}JSONDecodeError: "),
    Case("nested", NO_MESSAGE, f"{UNREADABLE}RecursionError: "),
    Case("too large", "a reply is larger than `max-reply-bytes`", TOO_LARGE),
    Case("norm", "a node sends NaN, wrong shapes, an absurd norm", "its update has the norm "),
    Case("nan", "a node sends NaN", "its model holds values that are not finite"),
    Case("shape", "a node sends NaN, wrong shapes", "tensor "),
    Case("loss", "a training loss of 10^308", "train-loss=1e+308 is beyond 1e+12"),
    Case("metrics", "a training loss of 10^308, a thousand metrics", "it has 1001 metrics, 64 at"),
    Case(
        "records",
        "a training loss of 10^308, a thousand metrics, other records",
        "the reply holds other records: ['more']",
    ),
    Case("another name", "a node answers in another node's name"),
    Case("reversed", "a node sends what is plausible and wrong"),
    Case(
        "locked database",
        "the SuperLink answers 500 when it is asked for replies",
        log="500 Internal Server Error' for url",
    ),
    Case("hang", "the proxy is restarted"),
    Case("endless upload", "an upload never ends", "no reply within round-timeout=60 s"),
    Case(
        "count",
        "or another number of samples",
        "samples; it is left out until it has answered anew",
    ),
    Case("", "it is left out until it has answered anew"),
]


def round_of(deed):
    return next(t for t, case in enumerate(CASES, start=1) if case.deed == deed)


@dataclass
class Rehearsal(SuperLink):
    """A SuperLink that can fail, behind a proxy."""

    proxy: Relay = field(init=False)

    def start(self):
        super().start()
        self.proxy = Relay(self.port)
        self.proxy.up()
        self.door = self.proxy.port

    def _command(self, name):
        unlucky = len(self._processes) == 2  # the SuperLink, and one SuperNode before it
        if name == "superlink":
            return command(faulty_superlink)
        return command(supernode) if unlucky else super()._command(name)


@pytest.fixture(scope="module")
def link(tmp_path_factory, rehearsal_app):
    home = tmp_path_factory.mktemp("rehearsal") / "home"
    started = Rehearsal(rehearsal_app, False, database=home / "state.db", home=home)
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def run(link):
    script = {f"1@{t}": case.deed for t, case in enumerate(CASES, start=1)}
    with contextlib.ExitStack() as nodes:
        for k in range(3):
            nodes.enter_context(link.supernode(k, 3))
        submitted = link.submit(
            f'strategy="fedavg" model="lenet" partition="iid" local-epochs=1 robust="median" '
            f"num-server-rounds={len(CASES)} min-nodes=3 round-timeout=60.0 snapshot-every=1",
            script=script,
        )
        link.await_begin(submitted, f"1@{round_of('hang')}")
        link.proxy.down()
        (submitted.output / "go").touch()
        time.sleep(3)
        link.proxy.up()
        yield link.wait(submitted)


@pytest.fixture(scope="module")
def log(link, run):
    return link.log(run.run_id)


def test_nothing_of_it_ends_the_run(link, run):
    assert run.status == "finished:completed", run.details
    assert run.column("failures") == ["1" if case.said else "0" for case in CASES]
    assert run.column("clients") == ["2" if case.said else "3" for case in CASES]
    assert link.process.poll() is None
    assert all(node.returncode in (None, -15, 0) for node in link._processes)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.deed or "honest again")
def test_each_failure_is_named_as_the_page_says(log, case):
    number = round_of(case.deed)
    of_client = [line for line in log.splitlines() if f"round {number}: client " in line]
    if case.said:
        (line,) = of_client
        assert f"round {number}: client 1 failed: {case.said}" in line or (
            f"round {number}: client 1 failed: " in line and line.endswith(case.said)
        )
    else:
        assert of_client == []
    assert case.log in log
    assert case.row in (REPOSITORY / "docs" / "deploy.md").read_text()


def test_who_answers_in_another_name_is_not_believed(run):
    """Client 0's own reply to that round was neither taken for a second one nor replaced."""
    row = run.rounds()[round_of("another name") - 1]
    assert (row["clients"], row["failures"]) == ("3", "0")


def test_the_median_does_not_follow_ten_times_the_opposite(run):
    """The mean of three, of which one moves ten times as far back, would be 2.7 times as long."""

    def model(number):
        return load_file(run.file(f"snapshots/round{number:04}/model.safetensors"))

    def movement(number):
        before, after = model(number - 1), model(number)
        return sum(float((after[name] - before[name]).square().sum()) for name in after) ** 0.5

    number = round_of("reversed")
    assert movement(number) < 1.5 * movement(number - 1)


def test_the_server_says_which_node_to_look_at(log):
    assert len(re.findall(r"client 1 failed: ", log)) == sum(bool(case.said) for case in CASES)
