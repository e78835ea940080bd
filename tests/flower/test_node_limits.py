"""What a hospital allows and what it keeps, with real SuperNodes and the bundle of the app."""

import contextlib

import pytest
from helpers import REPOSITORY, own_data

from fedadb_app import audit
from fedadb_app.app_hash import app_hash

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

LIMITS = {
    "a": f'trusted-apps = ["{app_hash(REPOSITORY)}"]\nmax-rounds = 2',
    "b": "max-rounds = 1",
    "c": f'trusted-apps = ["{"0" * 64}"]',
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("hospitals")


@pytest.fixture(scope="module")
def run(deployment, root):
    """Two rounds that hospital a alone allows."""
    with contextlib.ExitStack() as stack:
        for number, (name, limits) in enumerate(LIMITS.items()):
            own_data(root / f"{name}.npz", [0, 1, 2, 3] * 5, seed=number)
            study = root / f"{name}.toml"
            study.write_text(limits)
            path = root / f"{name}.npz"
            node = deployment.hospital(path, study=study, audit_dir=root / f"audit-{name}")
            stack.enter_context(node)
        submitted = deployment.submit(
            'dataset="nodes" classes="k,l,m,n" image-shape="1x28x28" evaluate="none" min-nodes=1 '
            'num-server-rounds=2 local-epochs=1 strategy="fedavg"'
        )
        yield deployment.wait(submitted)


def test_who_does_not_allow_the_run_is_left_out_and_says_which_limit(deployment, run):
    assert run.status == "finished:completed", run.details
    assert run.column("clients") == ["1", "1"]
    log = deployment.log(run.run_id)
    assert "max-rounds: it is 1, and the run has num-server-rounds=2" in log
    assert "trusted-apps: the app's code has the hash " in log


def test_each_hospital_has_logged_what_it_was_asked_and_what_it_sent(run, root):
    for name in LIMITS:
        lines = list(audit.read(root / f"audit-{name}"))
        assert not [line.fault for line in lines if line.fault]
        assert lines[0].entry["event"] == "run"
        assert lines[0].entry["app"] == app_hash(REPOSITORY), "that of the bundle is a checkout's"
        events = [(line.entry["event"], line.entry.get("message")) for line in lines[1:]]
        if name == "a":
            assert events.count(("received", "train")) == events.count(("sent", "train")) == 2
        else:
            assert set(events) == {("received", "query"), ("refused", "query")}
