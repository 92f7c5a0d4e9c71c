"""The runner: budgets, search, shrinking, isolation, known defects; it gives a verdict."""
