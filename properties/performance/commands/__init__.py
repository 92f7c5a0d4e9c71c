"""Commands that print and draw timelines, and what is sent."""
