"""From a run's folder to what a hospital can use: predictions, one file, a model card."""
