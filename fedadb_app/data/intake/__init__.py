"""How anybody's images come in, from looking for files to a report on each that was found."""
