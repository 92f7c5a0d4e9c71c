"""What a person gets when a law does not hold: a text, a picture, a diagnosis, a script, and a case to replay."""

from shardproof.properties.failures.files import FOLDER, Written, write
from shardproof.properties.failures.text import briefly, cause_of, render, report

__all__ = ["FOLDER", "Written", "briefly", "cause_of", "render", "report", "write"]
