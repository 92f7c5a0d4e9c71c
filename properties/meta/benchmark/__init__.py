"""Measurements: what verification costs. Nothing here asserts; times are ratios within one run."""
