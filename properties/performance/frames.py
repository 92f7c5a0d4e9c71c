"""Where a compiled program's lines come from: the tables of files, functions and frames in front of its text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from shardproof.properties.communication.text import Instruction

INNERMOST = 3
"""How many frames are told: what was called, and by what."""

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
NUMBERED = re.compile(r"(\d+) (.+)")
FIELD = re.compile(r"(\w+)=(\d+)")
FRAME = re.compile(r"stack_frame_id=(\d+)")


@dataclass(frozen=True)
class Frames:
    """The frames of a text by their numbers: where each is, and the number of what called it.

    A text without them has none, and then nothing is told.
    """

    places: Mapping[int, tuple[str, int]]

    @classmethod
    def read(cls, text: str) -> "Frames":
        """The frames of a text."""
        tables: dict[str, dict[int, str]] = {name: {} for name in TABLES}
        current: dict[int, str] | None = None
        for line in text.splitlines():
            if line.strip() in TABLES:
                current = tables[line.strip()]
            elif current is not None and (entry := NUMBERED.fullmatch(line.strip())):
                current[int(entry[1])] = entry[2]
            elif line.strip():
                current = None
        files, functions, locations, frames = (tables[name] for name in TABLES)
        places: dict[int, tuple[str, int]] = {}
        for number, row in frames.items():
            frame = dict(FIELD.findall(row))
            at = dict(FIELD.findall(locations.get(int(frame.get("file_location_id", 0)), "")))
            file = files.get(int(at.get("file_name_id", 0)), "").strip('"')
            function = functions.get(int(at.get("function_name_id", 0)), "").strip('"')
            parent = int(frame.get("parent_frame_id", 1)) - 1  # written one higher, so that none is 1
            places[number] = (f"{PurePath(file).name}:{at.get('line', '?')} in {function}", parent)
        return cls(places)

    def where(self, instruction: Instruction) -> str:
        """The innermost places that an instruction comes from; empty if the text does not say."""
        frame = FRAME.search(instruction.attributes.get("metadata", ""))
        told: list[str] = []
        number = int(frame[1]) if frame else 0
        while number in self.places and len(told) < INNERMOST:
            place, parent = self.places[number]
            told.append(place)
            number = parent if parent < number else 0
        return ", called at ".join(told)
