"""Diagnoses: the mistake in the blocks of a failure, in words."""
