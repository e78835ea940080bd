"""Feature extractors, and the classifier that puts a method's heads on one."""
