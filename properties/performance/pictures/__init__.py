"""Timelines and crossovers as SVG."""
