"""The `fedadb` command: what Flower's own command line lacks."""
