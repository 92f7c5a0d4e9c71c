"""What JAX and XLA do with layouts: operation by operation, and in drawn programs."""
