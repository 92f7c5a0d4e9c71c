"""How near is near: exact data, float64 runs and sampled roundings."""
