"""The report of a violation: a text, a picture, a diagnosis, a script, and a case to replay."""
