"""A run's folder: one writer, one reader, one atomic replace, checkpoints, the live view."""
