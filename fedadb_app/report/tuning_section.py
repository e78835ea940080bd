"""The section of a comparison's page on how its methods' values were chosen."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedadb_app.comparison.tuned import TRIALS, parse_trials, trials_of
from fedadb_app.report.page_parts import Section
from fedadb_app.report.svg import MUTED, SERIES, Picture
from fedadb_app.runs.text_files import read_or_note
from strategies.registry import method_title


def tuning_section(folder: Path, faults: dict[str, str]) -> list[Section]:
    """Return the section on each method's trials; none where no values were tuned."""
    table = read_or_note(folder / TRIALS, parse_trials, faults)
    if table is None:
        return []
    return [
        Section(
            "How the values were tuned",
            lead="Each method's trials in their order, by their best value on the validation part. "
            "Hollow: ended early, so that it might have become better; filled: the chosen one. "
            "The line is the method's default, trial 0.",
            pictures=[_trials(name, trials) for name, trials in trials_of(table).items()],
            tables={f"All trials ({TRIALS})": table},
        )
    ]


def _trials(name: str, trials: Sequence[Mapping[str, str]]) -> Picture:
    """Draw the values of one method's trials."""
    known = [t for t in trials if t["value"]]
    best = [t for t in known if t["chosen"]]
    metric = trials[0]["metric"]

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        for t in known:
            filled = {"chosen": SERIES[0], "ended": "none"}
            state = "chosen" if t["chosen"] else t["state"]
            axes.plot(
                *([int(t["trial"])], [float(t["value"])]),
                marker="o",
                markersize=6,
                markerfacecolor=filled.get(state, MUTED),
                markeredgecolor=SERIES[0] if state == "chosen" else MUTED,
            )
        if known and known[0]["trial"] == "0":
            axes.axhline(float(known[0]["value"]), color=MUTED, linewidth=0.8)
        axes.set_xlim(-0.5, len(trials) - 0.5)
        axes.set_xlabel("trial")
        axes.set_ylabel(metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    said = ", ".join(
        f"{t['trial']} {t['value']}" if t["value"] else f"{t['trial']} failed" for t in trials
    )
    title = method_title(name)
    choice = f" Chosen: trial {best[0]['trial']}, {best[0]['values']}." if best else ""
    alt = f"Dot plot. {metric} of {title} by trial: {said}.{choice}"
    return Picture(draw, (3.6, 2.1), alt, title)
