"""The runner: search, shrinking, isolation, known defects; it gives a verdict."""
