"""The section of a run's page on what each site's own copy of the model gains."""

from fedadb_app.report.page_parts import Section
from fedadb_app.runs.personalised import (
    PERSONALISED,
    personalised_in_words,
    read_personalised,
)
from fedadb_app.runs.reader import RunFiles
from fedadb_app.runs.text_files import read_or_note


def personalised_section(run: RunFiles) -> tuple[list[Section], list[str]]:
    """Return the section, if clients have personalised the model, and what cannot be read."""
    faults: dict[str, str] = {}
    table = read_or_note(run.folder / PERSONALISED, read_personalised, faults)
    if table is None:
        return [], list(faults.values())
    said = personalised_in_words(run.summary.get("personalised", {}))
    lead = (
        "Each site has trained its own copy of the last round's model on its own images; before "
        "and after, on what it holds out. "
    )
    section = Section(
        "A model for each site",
        lead=lead + " ".join(f"{clause[0].upper()}{clause[1:]}." for clause in said),
        tables={f"Every site ({PERSONALISED})": table},
    )
    return [section], []
