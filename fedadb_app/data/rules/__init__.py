"""The rules by which samples are dealt to clients, a file each."""
