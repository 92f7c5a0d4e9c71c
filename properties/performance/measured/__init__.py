"""What is measured on accelerators and read off what XLA:TPU schedules, with pytest's markers."""
