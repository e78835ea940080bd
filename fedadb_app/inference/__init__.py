"""From a run's folder to what a hospital can use: predictions for new images."""
