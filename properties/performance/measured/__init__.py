"""Measurements on accelerators, and checks of XLA:TPU's schedules, for tests with pytest's markers."""
