"""The catalogues of planted bugs and of right implementations, run against the laws."""
