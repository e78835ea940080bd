"""`fedadb log`: a run that has ended, handed over to an experiment tracker."""
