"""The measurement of the intake runs; its numbers are in docs/performance.md."""

import re

from benchmarks import intake


def test_a_line_for_each_number_of_images(capsys, monkeypatch):
    monkeypatch.setattr(intake, "in_new_process", lambda work, *arguments: work(*arguments))
    monkeypatch.setenv("XDG_CACHE_HOME", "set anew by each opening")
    intake.main("8,12", side=28)
    said = capsys.readouterr().out
    lines = [re.findall(r"[\d.]+", line) for line in said.splitlines()[2:]]
    assert [line[0] for line in lines] == ["8", "12"]
    assert all(float(line[-2]) < float(line[2]) + 1 for line in lines)
