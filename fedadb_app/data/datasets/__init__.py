"""The data sets, a file each: what they are, and where their images lie."""
