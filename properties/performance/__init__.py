"""Stated machines and timelines: when a device computes, and when its links are busy."""
