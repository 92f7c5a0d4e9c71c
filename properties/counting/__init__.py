"""What programs send: counted in the record of the interpreter and in compiled text, and bounded from below."""
