"""`fedadb reproduce`: each table and figure of the paper, from the runs that it is made of."""
