"""One file, whole or not there: what was written comes back, damage is refused, no crash spoils."""

import os
import pickletools
import stat

import pytest
import torch
from helpers import identical
from safetensors.torch import load_file

from fedadb_app.errors import CheckpointError, StorageError
from fedadb_app.runs import atomic
from fedadb_app.runs.atomic import append, move, read_tensors, write_tensors

TENSORS = {
    "model/weight": torch.tensor([[1.5, -2.0, 3.25]]),
    "model/steps": torch.tensor(12),
    "state/double": torch.tensor([1e-300], dtype=torch.float64),
    "state/nothing": torch.zeros(0, 3),
    "view": torch.arange(6.0).view(2, 3).t(),
}
TEXT = '{"rows": "1,Größe\\n"}'


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "file.safetensors"


def test_what_was_written_comes_back(path):
    write_tensors(path, TENSORS, TEXT)
    tensors, text = read_tensors(path)
    assert identical(tensors, {name: t.contiguous() for name, t in TENSORS.items()})
    assert text == TEXT


def test_any_reader_of_safetensors_can_open_it_and_it_is_no_pickle(path):
    write_tensors(path, TENSORS, TEXT)
    assert load_file(path).keys() == TENSORS.keys()
    with pytest.raises(ValueError):  # noqa: PT011
        list(pickletools.genops(path.read_bytes()))


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_only_its_owner_may_look(path):
    write_tensors(path, TENSORS)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# --- a crash --------------------------------------------------------------------------------


class Crash(BaseException):
    """The power fails; nothing cleans up."""


def fail(*args):
    raise Crash


class HalfWritten:
    """A file that takes half of what is written, then the power fails."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.file.close()

    def write(self, content):
        self.file.write(content[: len(content) // 2])
        raise Crash


@pytest.mark.parametrize("instant", ["while it is written", "before fsync", "before the rename"])
def test_a_crash_leaves_what_was_there(path, monkeypatch, instant):
    write_tensors(path, TENSORS, "old")
    with monkeypatch.context() as patch:
        if instant == "while it is written":
            real = type(path).open
            patch.setattr(type(path), "open", lambda *args: HalfWritten(real(*args)))
        elif instant == "before fsync":
            patch.setattr(atomic.os, "fsync", fail)
        else:
            patch.setattr(type(path), "replace", fail)
        with pytest.raises(Crash):
            write_tensors(path, {"other": torch.ones(3)}, "new")
    tensors, text = read_tensors(path)
    assert text == "old"
    assert tensors.keys() == TENSORS.keys()
    write_tensors(path, {"other": torch.ones(3)}, "new")  # leftovers are in nobody's way
    assert read_tensors(path)[1] == "new"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_crash_before_the_first_file_is_complete_leaves_none(path, monkeypatch):
    monkeypatch.setattr(type(path), "replace", fail)
    with pytest.raises(Crash):
        write_tensors(path, TENSORS)
    assert not path.exists()


def test_the_content_is_on_the_disk_before_the_name_is(path, monkeypatch):
    events = []
    replace, fsync = type(path).replace, os.fsync
    monkeypatch.setattr(
        type(path), "replace", lambda *args: events.append("rename") or replace(*args)
    )

    def spy(number):
        events.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")
        fsync(number)

    monkeypatch.setattr(atomic.os, "fsync", spy)
    write_tensors(path, TENSORS)
    assert events == ["file", "rename", "folder"]


def test_a_full_disk_is_said_and_what_was_there_stays(path, monkeypatch):
    write_tensors(path, TENSORS, "old")

    def full(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        with pytest.raises(StorageError, match=r"file\.safetensors cannot be written \(No space"):
            write_tensors(path, {}, "new")
    assert read_tensors(path)[1] == "old"


# --- folders, and rows ----------------------------------------------------------------------


def made(folder, name):
    folder.mkdir(parents=True)
    (folder / name).write_text(name)
    return folder


def test_a_folder_takes_the_place_of_another(tmp_path):
    target = made(tmp_path / "target", "old")
    move(made(tmp_path / "ready", "new"), target)
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "new"]


def test_a_folders_files_are_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(atomic, "sync", lambda path: events.append(path.name))
    rename = type(tmp_path).replace
    monkeypatch.setattr(
        type(tmp_path), "replace", lambda *args: events.append("rename") or rename(*args)
    )
    move(made(tmp_path / "ready", "file"), tmp_path / "target")
    assert events == ["file", "ready", "rename", tmp_path.name]


def test_what_cannot_be_moved_is_said(tmp_path):
    ready = made(tmp_path / "ready", "file")
    with pytest.raises(StorageError, match="nowhere/target cannot be written"):
        move(ready, tmp_path / "nowhere" / "target")
    assert (ready / "file").exists()


def test_rows_are_added_at_the_end(tmp_path):
    append(tmp_path / "table", b"1\n")
    append(tmp_path / "table", b"2\n")
    assert (tmp_path / "table").read_bytes() == b"1\n2\n"
    with pytest.raises(StorageError, match="folder/table cannot be written"):
        append(tmp_path / "folder" / "table", b"")


# --- damage ---------------------------------------------------------------------------------


def test_every_flipped_bit_is_noticed(path):
    write_tensors(path, TENSORS, TEXT)
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            tensors, text = read_tensors(path)
        except CheckpointError:
            continue
        # Spelling of the header that changes no meaning, e.g. a blank that became a tab.
        assert text == TEXT, position
        assert identical(tensors, {n: t.contiguous() for n, t in TENSORS.items()}), position


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_refused_by_its_name(path, share):
    write_tensors(path, TENSORS, TEXT)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointError, match=r"file\.safetensors is damaged"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\x80\x04N.", b"round,accuracy\n"])
def test_another_file_is_refused(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_tensors(path)


def test_a_file_of_tensors_that_is_not_ours_is_refused(path):
    from safetensors.torch import save_file

    path.parent.mkdir()
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match="damaged"):
        read_tensors(path)
