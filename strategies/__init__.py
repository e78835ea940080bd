"""One file per paper, both halves of the method side by side; `registry` lists them."""
