"""Which code a run was: a commit where there is one, and a reason where there is none."""

import subprocess

import pytest

from fedadb_app.runs.origin import commit_of, git_state, note_commit, origin


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "client_app.py").write_text("1")
    git(tmp_path, "add", "client_app.py")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_checkout_has_its_commit_and_says_what_differs(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    assert git_state(checkout) == f"{commit}, no changed files"
    (checkout / "client_app.py").write_text("2")
    (checkout / "new.py").write_text("3")
    assert git_state(checkout) == f"{commit}, 2 changed files"


def test_a_bundle_below_somebodys_checkout_is_no_part_of_it(checkout):
    bundle = checkout / "apps" / "fedadb"
    bundle.mkdir(parents=True)
    (bundle / "client_app.py").write_text("1")
    assert git_state(bundle).startswith("unknown: the app's folder is no checkout")


def test_without_git_it_says_so(checkout, monkeypatch):
    monkeypatch.setenv("PATH", str(checkout))
    assert git_state(checkout) == "unknown: Git is not installed"


def test_a_bundle_has_the_commit_of_the_checkout_that_was_submitted(checkout, tmp_path):
    bundle = tmp_path / "apps" / "fedadb"
    bundle.mkdir(parents=True)
    (bundle / "client_app.py").write_text("2")
    assert commit_of(bundle) == git_state(bundle)  # nobody has noted anything
    (checkout / "client_app.py").write_text("2")
    note_commit(checkout)
    commit = git(checkout, "rev-parse", "HEAD")
    assert commit_of(bundle) == f"{commit}, 2 changed files"  # apps/ is one of them
    git(checkout, "commit", "-qam", "second")
    note_commit(checkout)  # the same code, submitted again
    assert commit_of(bundle).startswith(git(checkout, "rev-parse", "HEAD"))
    (bundle / "client_app.py").write_text("other code")
    assert commit_of(bundle).startswith("unknown: the app's folder is no checkout")


def test_a_folder_without_a_commit_leaves_no_note(tmp_path, own_cache):
    (tmp_path / "client_app.py").write_text("3")
    note_commit(tmp_path)
    assert not own_cache.exists()


def test_a_cache_that_cannot_be_written_keeps_nothing_from_starting(checkout, own_cache):
    own_cache.parent.write_text("a file is in the way")
    note_commit(checkout)
    assert commit_of(checkout).startswith(git(checkout, "rev-parse", "HEAD"))


def test_no_gpu_is_looked_for_where_a_run_uses_none(monkeypatch):
    def looked():
        raise AssertionError("CUDA was asked for")

    monkeypatch.setattr("torch.cuda.is_available", looked)
    found = origin("cpu")
    assert found["gpu"] == "none used"
    assert len(found["app-hash"]) == 64
    assert float(found["memory"].removesuffix(" GiB")) > 0
