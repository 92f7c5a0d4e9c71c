"""The tests of the functions that `--impl` names: what of the tests is installed."""
