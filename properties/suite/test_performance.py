"""Times of all measured forms on real TPUs and GPUs."""

from shardproof.properties.given.performance import test_performance  # noqa: F401  # a test of this file as well
