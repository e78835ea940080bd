"""What a client remembers between rounds, on its own disk, so that it outlives its node's process.

    <client-state-dir>/<run id>/client-<identity>/round-<t>.safetensors

A run writes only below its own id, so two runs never mix. A resumed run also reads what the runs
before it wrote up to the round it goes on from; what they wrote later belongs to rounds that are
repeated. What earlier runs wrote is never removed here, so that each of them can still be resumed.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedadb_app.data.intake.names import shown
from fedadb_app.errors import DataError
from fedadb_app.models.classifier import StateDict
from fedadb_app.runs.atomic import read_tensors, replace, write_tensors

NOTES = "trained-on"
"""The folder of the notes that `refuse_changed_data` keeps, in the user's cache folder."""


class Ancestor(NamedTuple):
    """A run that was resumed, directly or in several steps, and its last round that stands."""

    run_id: int
    last_round: int


def refuse_changed_data(
    base: Path, path: Path, digest: str, run_id: int, ancestors: Sequence[Ancestor]
) -> None:
    """Note which images a run trains on; refuse others than a run that it continues had.

    Within one run a node may mend its images: it then goes on with the new ones.

    Parameters
    ----------
    base : Path
        Where that is kept on this machine.
    path : Path
        Where the node's images lie.
    digest : str
        What they are.
    run_id : int
        The run.
    ancestors : Sequence[Ancestor]
        The runs that it continues.

    Raises
    ------
    DataError
        If the images have changed since.
    StorageError
        If the disk does not take the note.
    """
    place = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    notes = [base / f"{run}-{place}" for run in (*(a.run_id for a in ancestors), run_id)]
    noted = [_read_note(note)[0] for note in notes if note.is_file()]
    if noted and noted[-1] == digest and notes[-1].is_file():
        return
    if noted and noted[-1] != digest and not notes[-1].is_file():
        raise DataError(
            f"{shown(path)}: these are not the images of the run that is resumed; put them back, "
            f"or start a new run"
        )
    base.mkdir(parents=True, exist_ok=True)
    replace(notes[-1], digest.encode() + b"\n" + os.fsencode(path))


def remove_notes_of_lost_images(base: Path) -> tuple[int, int]:
    """Remove the notes about images that are not there any more: no run goes on with them.

    Returns
    -------
    tuple[int, int]
        How many notes there were, and how many of them were removed.

    Raises
    ------
    DataError
        If this user may not.
    """
    notes = sorted(base.iterdir()) if base.is_dir() else []
    lost = [note for note in notes if not os.path.exists(_read_note(note)[1])]
    for note in lost:
        try:
            note.unlink(missing_ok=True)
        except OSError as error:
            raise DataError(f"{note} cannot be removed: {error.strerror}") from error
    return len(notes), len(lost)


def _read_note(note: Path) -> tuple[str, bytes]:
    """Return the digest of the images, and where they lay."""
    digest, _, path = note.read_bytes().partition(b"\n")
    return digest.decode(), path or b"/"  # at first no path was noted: such a note stays


class StateFolder:
    """The states that one client keeps on disk.

    Parameters
    ----------
    base : str
        ``client-state-dir``.
    client : int
        The client's identity.
    run_id : int
        The run it trains for.
    ancestors : Sequence[Ancestor]
        The runs that this one continues.
    checkpoint_every : int
        After how many rounds the server writes a checkpoint; 0 = never.
    """

    def __init__(
        self,
        base: str,
        client: int,
        run_id: int,
        ancestors: Sequence[Ancestor],
        checkpoint_every: int,
    ) -> None:
        self._base = Path(base).expanduser()
        self._client = client
        self._run_id = run_id
        self._ancestors = ancestors
        self._checkpoint_every = checkpoint_every

    def read(self, server_round: int) -> tuple[int, StateDict]:
        """Return the client's newest state from before a round, and its round; 0 = none.

        Raises
        ------
        CheckpointError
            If its file is damaged.
        """
        files = {
            number: path
            for run_id, last in (*self._ancestors, Ancestor(self._run_id, server_round - 1))
            for number, path in self._files(run_id).items()
            if number <= last
        }
        if not files:
            return 0, {}
        newest = max(files)
        return newest, read_tensors(files[newest])[0]

    def write(self, server_round: int, state: StateDict) -> None:
        """Keep the state after a round, and remove those that no resumed run can need.

        Raises
        ------
        StorageError
            If the disk does not take it.
        """
        write_tensors(self._folder(self._run_id) / f"round-{server_round}.safetensors", state)
        # Who is asked for round t knows that the server's last checkpoint is the last one due
        # before t: a run resumed there needs the newest state up to it, this run the newest of all.
        every = self._checkpoint_every
        checkpoint = (server_round - 1) // every * every if every else 0
        files = self._files(self._run_id)
        needed = {server_round, max((t for t in files if t <= checkpoint), default=0)}
        for number in files.keys() - needed:
            files[number].unlink()

    def _folder(self, run_id: int) -> Path:
        return self._base / str(run_id) / f"client-{self._client}"

    def _files(self, run_id: int) -> dict[int, Path]:
        paths = self._folder(run_id).glob("round-*.safetensors")
        return {int(path.stem.removeprefix("round-")): path for path in paths}
