"""What a person gets when a law does not hold: a text, a picture, a diagnosis, a script, and a case to replay."""
