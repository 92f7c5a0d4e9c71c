"""What a person gets when a law does not hold: a text, a picture, a diagnosis, a script, and a case to replay."""

from shardproof.properties.report.failures.files import FOLDER, Written, write
from shardproof.properties.report.failures.text import briefly, render, report

__all__ = ["FOLDER", "Written", "briefly", "render", "report", "write"]
