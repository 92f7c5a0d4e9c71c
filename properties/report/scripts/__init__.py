"""The scripts of failures: plain JAX, which run alone."""
