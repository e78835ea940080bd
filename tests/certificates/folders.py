"""Whom the certificates are for, and what a folder of them holds."""

HOSTS = ["superlink.example.org", "10.0.0.5"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
