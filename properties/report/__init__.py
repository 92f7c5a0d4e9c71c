"""Reports: text, picture, diagnosis, script, replay, tables, and the pytest plugin."""
