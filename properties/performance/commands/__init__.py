"""Commands that print and draw timelines."""
