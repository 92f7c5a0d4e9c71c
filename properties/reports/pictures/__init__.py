"""Pictures: the steps of an algorithm, a timeline, and what is best for which size."""
