"""Images from where (sources), who holds what (partition), arrays to batches (batches)."""
