"""The engine tpu-compiler: compiles a program for a TPU topology that is not there, and runs nothing.

`libtpu` has the compiler, and needs no TPU for that. It is an optional dependency (the group `tpu-compiler`), and
works in a process of its own: it has to be told by environment variables, before it is loaded, of a machine that is not
there, which a process that has a TPU must not be.
"""

from shardproof.properties.performance.tpu_compiler.process import (
    Compiled,
    NotCompiled,
    NoTpuCompiler,
    Request,
    TpuCompiler,
    missing,
)
from shardproof.properties.performance.tpu_compiler.topology import Topology

__all__ = ["Compiled", "NoTpuCompiler", "NotCompiled", "Request", "Topology", "TpuCompiler", "missing"]
