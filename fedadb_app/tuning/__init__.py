"""`fedadb tune`: choose each method's values on validation images, with the same budget for all."""
