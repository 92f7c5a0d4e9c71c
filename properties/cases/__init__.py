"""Cases: what is drawn."""
