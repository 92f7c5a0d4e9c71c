"""The communication of programs: counted in the trace and in compiled text, and bounded from below."""
