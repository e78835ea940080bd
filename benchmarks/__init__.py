"""Speed and memory, always as ratios to a bare PyTorch loop in the same run."""
