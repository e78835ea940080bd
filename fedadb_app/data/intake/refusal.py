"""The one sentence for files that cannot be used, or were left out without being allowed to."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedadb_app.data.intake.find import IMAGE_SUFFIXES, NO_SUFFIX, LeftOut
from fedadb_app.data.intake.names import shown
from fedadb_app.data.intake.report import IntakeError, IntakeReport


def refuse_left_out(left_out: Sequence[LeftOut], report: IntakeReport, root: Path) -> None:
    """Refuse, with a `IntakeError`, files that are not read and not named as such.

    The sentence says how many there are of which kind, with one example.
    """
    asked = [x for x in left_out if not x.allowed]
    if not asked:
        return
    kinds = Counter(x.kind for x in asked)
    first = asked[0]
    pattern = f"*{first.kind}" if first.kind.startswith(".") else first.relative[-1]
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    raise IntakeError(
        f"{shown(root)}: {len(asked)} files are not read: {listed}; one is "
        f"{shown('/'.join(first.relative))}. Convert, move or remove them, or say that they may be "
        f'left out, as in ignore="{shown(pattern)}"',
        report,
    )


def refuse_unusable(problems: Sequence[tuple[str, str]], report: IntakeReport, root: Path) -> None:
    """Refuse, with a `IntakeError`, files that cannot become images: (kind, sentence) each."""
    if not problems:
        return
    _, sentence = problems[0]
    if len(problems) == 1:
        raise IntakeError(sentence, report)
    kinds = Counter(kind for kind, _ in problems)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    raise IntakeError(
        f"{len(problems)} files of {shown(root)} cannot be used ({listed}), the first: {sentence}",
        report,
    )


SUFFIXES_READ = ", ".join(sorted(IMAGE_SUFFIXES)) + f", or {NO_SUFFIX}"
"""For sentences that say what is read."""
