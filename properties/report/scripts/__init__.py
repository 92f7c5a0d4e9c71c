"""The scripts of failures, which run alone."""
