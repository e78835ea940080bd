"""`fedadb compare`: run a grid of methods, skews and seeds, then set them side by side."""
