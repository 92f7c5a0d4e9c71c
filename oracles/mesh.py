"""A mesh as plain data: named axes with sizes, over devices in some order."""

import keyword
import math
from collections.abc import Iterable
from dataclasses import dataclass

AXIS_TYPES = ("auto", "explicit")
MOST_AXES = 16
"""The most axes of a mesh."""
MOST_DEVICES = 2**16
"""The most devices of a mesh: 16 times the largest pod."""
LONGEST_NAME = 100
"""The most characters in the name of an axis."""


def as_axes(axis_name: str | Iterable[str]) -> tuple[str, ...]:
    """The axis tuple that `axis_name` stands for: `"tp"` means `("tp",)`."""
    return (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)


@dataclass(frozen=True)
class MeshCase:
    """A mesh that can be drawn, printed, compared and written to JSON; ValueError for arguments that describe none."""

    axis_names: tuple[str, ...]  # the axes in mesh order, slowest-varying first
    sizes: tuple[int, ...]  # the number of devices along each axis
    # the device numbers in mesh order, flattened (row-major). Left empty, they are 0, 1, 2, ….
    devices: tuple[int, ...] = ()
    axis_types: tuple[str, ...] = ()  # `"auto"` or `"explicit"`, one per axis. Left empty, all are `"auto"`.

    def __post_init__(self) -> None:
        if len(set(self.axis_names)) != len(self.axis_names) or len(self.sizes) != len(self.axis_names):
            raise ValueError(
                f"axis_names={self.axis_names} and sizes={self.sizes}: expected distinct names, each with one size"
            )
        for name in map(str, self.axis_names):  # a script is written with them, and XLA aborts on others than ASCII
            if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name):
                raise ValueError(f"axis_names={self.axis_names}: expected ASCII identifiers")
            if len(name) > LONGEST_NAME:
                raise ValueError(f"axis_names={self.axis_names}: expected at most {LONGEST_NAME} characters in each")
        if any(size < 1 for size in self.sizes):
            raise ValueError(f"sizes={self.sizes}: expected at least one device along every axis")
        if math.prod(self.sizes) > MOST_DEVICES or len(self.sizes) > MOST_AXES:
            raise ValueError(f"sizes={self.sizes}: expected at most {MOST_AXES} axes and {MOST_DEVICES} devices")
        object.__setattr__(self, "devices", self.devices or tuple(range(self.size)))
        object.__setattr__(self, "axis_types", self.axis_types or ("auto",) * len(self.sizes))
        if len(self.devices) != self.size or len(set(self.devices)) != self.size or min(self.devices) < 0:
            raise ValueError(
                f"devices={self.devices}: expected {self.size} distinct device numbers for the mesh {self.shape}"
            )
        if max(self.devices) >= MOST_DEVICES:
            raise ValueError(f"devices={self.devices}: expected numbers below {MOST_DEVICES}")
        if len(self.axis_types) != len(self.sizes) or not set(self.axis_types) <= set(AXIS_TYPES):
            raise ValueError(
                f"axis_types={self.axis_types}: expected one of {AXIS_TYPES} for each of {self.axis_names}"
            )

    @property
    def shape(self) -> dict[str, int]:
        """Axis name to size, in mesh order."""
        return dict(zip(self.axis_names, self.sizes, strict=True))

    @property
    def types(self) -> dict[str, str]:
        """Axis name to `"auto"` or `"explicit"`, in mesh order."""
        return dict(zip(self.axis_names, self.axis_types, strict=True))

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.sizes)

    def axis_size(self, axis_name: str | Iterable[str]) -> int:
        """The number of devices that a collective over `axis_name` connects."""
        self._check(as_axes(axis_name))
        return math.prod(self.shape[name] for name in as_axes(axis_name))

    def in_mesh_order(self, axis_name: str | Iterable[str]) -> tuple[str, ...]:
        """The names of `axis_name`, sorted into mesh order."""
        self._check(as_axes(axis_name))
        return tuple(sorted(as_axes(axis_name), key=self.axis_names.index))

    def longer(self, names: Iterable[str]) -> list[str]:
        """Those of the names whose axes have several devices, in the order given: the others connect nothing."""
        return [name for name in names if self.shape[name] > 1]

    def _check(self, axes: tuple[str, ...]) -> None:
        for name in axes:
            if name not in self.axis_names:
                raise ValueError(f"axis_name={axes}: {name!r} is not an axis of the mesh {self}")

    @property
    def permuted(self) -> bool:
        """True if the devices are in another order than 0, 1, 2, …."""
        return self.devices != tuple(range(self.size))

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.shape.items())
        explicit = [name for name, kind in self.types.items() if kind == "explicit"]
        notes = [f"devices {','.join(map(str, self.devices))}"] if self.permuted else []
        notes += [f"explicit {','.join(explicit)}"] if explicit else []
        return f"({axes})" + "".join(f" [{note}]" for note in notes)
