"""What a client keeps on disk: which state a round sees, and which files are still needed."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedadb_app.client_state import Ancestor, StateFolder, refuse_changed_data
from fedadb_app.errors import CheckpointError, DataError, StorageError
from fedadb_app.runs import atomic


def folder(base, run_id=1, ancestors=(), client=0, every=0) -> StateFolder:
    return StateFolder(str(base), client, run_id, ancestors, every)


def state(value: float) -> dict[str, torch.Tensor]:
    return {"v": torch.tensor(float(value))}


def seen(kept: StateFolder, server_round: int) -> tuple[int, float | None]:
    """The round and the value that a round sees."""
    number, found = kept.read(server_round)
    return number, float(found["v"]) if found else None


def test_at_first_there_is_nothing_and_nothing_is_made(tmp_path):
    assert folder(tmp_path).read(1) == (0, {})
    assert list(tmp_path.iterdir()) == []


def test_a_round_sees_the_newest_state_from_before_it(tmp_path):
    kept = folder(tmp_path, every=10)
    for number in (2, 9):
        kept.write(number, state(number))
    assert seen(folder(tmp_path), 10) == (9, 9.0)
    assert seen(folder(tmp_path), 9) == (0, None)  # 2 was no checkpoint's, nor the newest


def test_clients_and_runs_do_not_mix(tmp_path):
    folder(tmp_path, run_id=1, client=0).write(3, state(1))
    assert seen(folder(tmp_path, run_id=1, client=1), 4) == (0, None)
    assert seen(folder(tmp_path, run_id=2, client=0), 4) == (0, None)
    assert seen(folder(tmp_path, run_id=1, client=0), 4) == (3, 1.0)


def test_a_resumed_run_sees_nothing_of_the_rounds_it_repeats(tmp_path):
    old = folder(tmp_path, run_id=1, every=10)
    for number in (8, 11, 13):
        old.write(number, state(number))
    resumed = folder(tmp_path, run_id=2, ancestors=[Ancestor(1, 10)], every=10)
    for number in (11, 12, 14):
        assert seen(resumed, number) == (8, 8.0)
    resumed.write(12, state(-12))
    assert seen(resumed, 14) == (12, -12.0)
    assert seen(old, 14) == (13, 13.0)


@pytest.mark.parametrize("every", [0, 1, 7])
def test_no_more_than_two_files_stay(tmp_path, every):
    kept = folder(tmp_path, every=every)
    for number in range(1, 30):
        kept.write(number, state(number))
        assert len(list(tmp_path.rglob("*"))) - 2 <= (2 if every else 1)


def test_a_damaged_state_is_refused_by_its_name(tmp_path):
    folder(tmp_path).write(3, state(1))
    (path,) = tmp_path.rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"1/client-0/round-3\.safetensors is damaged"):
        folder(tmp_path).read(4)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"round-1\.safetensors cannot be written \(Not a dir"):
        folder(tmp_path / "file").write(1, state(1))


def test_the_users_home_is_meant_by_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder("~/states").write(1, state(1))
    assert list((tmp_path / "states").rglob("*.safetensors"))


# --- nothing that a resumed run could need is ever removed -----------------------------------


@dataclass
class Run:
    """A run that keeps every state for ever, in one dictionary a round: the brute-force twin."""

    run_id: int
    every: int
    ancestors: tuple[Ancestor, ...] = ()
    states: dict[int, float] = field(default_factory=dict)  # this client's, those it began with too
    finished: int = 0
    checkpoint: tuple[int, dict[int, float], tuple[Ancestor, ...]] | None = None

    def train(self, base, value: float, takes_part: bool) -> None:
        number = self.finished + 1
        if not takes_part:
            return
        kept = folder(base, self.run_id, self.ancestors, every=self.every)
        newest = max(self.states, default=0)
        assert seen(kept, number) == (newest, self.states.get(newest))
        kept.write(number, state(value))
        self.states[number] = value

    def end_round(self) -> None:
        self.finished += 1
        if self.every and self.finished % self.every == 0:
            lineage = (*self.ancestors, Ancestor(self.run_id, self.finished))
            self.checkpoint = (self.finished, dict(self.states), lineage)


@st.composite
def histories(draw):
    """Runs one after another: which earlier one each resumes (-1: none), how often it saves,
    in which rounds the client takes part, and whether the last of them ended."""
    return [
        (
            draw(st.integers(-1, i - 1)),
            draw(st.integers(0, 4)),
            draw(st.lists(st.booleans(), min_size=1, max_size=9)),
            draw(st.booleans()),
        )
        for i in range(draw(st.integers(1, 5)))
    ]


@given(histories())
@settings(max_examples=150)
def test_every_run_can_be_resumed_from_its_last_checkpoint_at_any_time(tmp_path_factory, history):
    """Also twice, from a run whose successor went further, and through a chain of runs."""
    base = tmp_path_factory.mktemp("states")
    values = itertools.count(1)
    runs: list[Run] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic.os, "fsync", lambda number: None)  # the disk is not what is tested
        for parent, every, rounds, last_ends in history:
            run = Run(len(runs), every)
            if parent >= 0 and (checkpoint := runs[parent].checkpoint) is not None:
                run.finished, states, run.ancestors = checkpoint
                run.states, run.checkpoint = dict(states), checkpoint
            runs.append(run)
            for number, takes_part in enumerate(rounds, start=1):
                run.train(base, next(values), takes_part)
                if number < len(rounds) or last_ends:
                    run.end_round()


# --- which images a run was begun with ------------------------------------------------------


def test_a_node_may_mend_its_images_within_a_run(tmp_path):
    notes, path = tmp_path / "notes", Path("/data/h")
    for digest in ("one", "one", "two"):
        refuse_changed_data(notes, path, digest, 7, ())
    refuse_changed_data(notes, Path("/data/other"), "three", 7, ())  # another node's, here
    refuse_changed_data(notes, path, "three", 8, ())  # another run


@pytest.mark.parametrize("digest", ["one", "two"])
def test_a_resumed_run_begins_with_the_images_of_the_run_before(tmp_path, digest):
    notes, path = tmp_path / "notes", Path("/data/h")
    for before in ("one", "two"):  # mended in between: the last ones count
        refuse_changed_data(notes, path, before, 7, ())
    ancestors = (Ancestor(6, 1), Ancestor(7, 3))
    if digest == "two":
        refuse_changed_data(notes, path, digest, 9, ancestors)
        refuse_changed_data(notes, path, "three", 9, ancestors)  # mended again
        return
    with pytest.raises(DataError, match="/data/h: these are not the images of the run that is"):
        refuse_changed_data(notes, path, digest, 9, ancestors)
