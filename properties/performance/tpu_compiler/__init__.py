"""The engine tpu-compiler: compiles a program for a TPU topology without any TPU, and runs nothing.

`libtpu` has the compiler. It is an optional dependency (the group `tpu-compiler`), and works in a process of its own,
since environment variables that describe another machine must be set before it is loaded.
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
