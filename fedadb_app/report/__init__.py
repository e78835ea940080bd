"""`fedadb report`: one self-contained HTML page about a run or a comparison."""
