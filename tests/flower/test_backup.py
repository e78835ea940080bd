"""Backup and restore of the SuperLink's database, with the command of docs/deploy.md."""

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from flower.superlink import SuperLink
from helpers import REPOSITORY

from fedadb_app.certificates import issue

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1200)]

RUN = 'strategy="fedavg" num-server-rounds=1 local-epochs=1'


def back_up(database: Path, target: Path) -> None:
    """Run the page's command, between other folders."""
    page = (REPOSITORY / "docs" / "deploy.md").read_text()
    (code,) = re.findall(r"^python -c '(import sqlite3; .*)'$", page, re.MULTILINE)
    for there, here in (
        ("/var/lib/fedadb/superlink.db", database),
        ("/backup/superlink.db", target),
    ):
        assert code.count(there) == 1
        code = code.replace(there, str(here))
    subprocess.run([sys.executable, "-c", code], check=True)


def registered(link: SuperLink) -> set[str]:
    """Return the ids of the nodes that may join."""
    done = link.flwr("supernode", "list", "test", "--format", "json")
    return {node["node-id"] for node in json.loads(done.stdout)["nodes"]}


def trained_with_one_node(link: SuperLink) -> None:
    trust = f"--root-certificates={link.credentials / 'ca.crt'}"
    key = f"--auth-supernode-private-key={link.credentials / 'hospital-a.key'}"
    with link.supernode(0, 1, trust, key):
        outcome = link.run(RUN)
    assert outcome.status == "finished:completed", outcome.details
    assert outcome.column("clients") == ["1"]


def test_a_database_backed_up_while_it_runs_admits_the_same_nodes_elsewhere(app, tmp_path):
    credentials = tmp_path / "credentials"
    issue(credentials, ["superlink.example.org"], ["hospital-a", "hospital-b"], 365)
    (tmp_path / "old").mkdir()
    database = tmp_path / "old" / "superlink.db"
    first = SuperLink(app, False, credentials, database, home=tmp_path / "old")
    try:
        first.start()
        for name in ("hospital-a", "hospital-b"):
            public_key = str(credentials / f"{name}.pub")
            done = first.flwr("supernode", "register", public_key, "test", "--name", name)
            assert done.returncode == 0, done.stdout + done.stderr
        trained_with_one_node(first)
        before = registered(first)
        assert len(before) == 2
        assert database.with_name("superlink.db-wal").stat().st_size > 0  # what `cp` would miss
        back_up(database, tmp_path / "backup.db")
        first.kill(first.process)
    finally:
        first.stop()
    with sqlite3.connect(tmp_path / "backup.db") as copy:
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    (tmp_path / "new").mkdir()
    (tmp_path / "backup.db").rename(tmp_path / "new" / "superlink.db")
    second = SuperLink(
        app, False, credentials, tmp_path / "new" / "superlink.db", home=tmp_path / "new"
    )
    try:
        second.start()
        assert registered(second) == before
        trained_with_one_node(second)
    finally:
        second.stop()
