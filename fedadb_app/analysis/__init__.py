"""The paper's read-outs, computed from a run's folder alone."""
