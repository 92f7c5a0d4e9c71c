"""What a person gets when a law does not hold: a text, a picture, a diagnosis, a script, and a case to replay."""

from properties.failures.files import FOLDER, Written, write
from properties.failures.text import render

__all__ = ["FOLDER", "Written", "render", "write"]
