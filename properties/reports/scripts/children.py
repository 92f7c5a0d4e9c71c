"""How a script runs what may abort or hang, or what reads memory that was never written: in a process of its own."""

from shardproof.properties.runner.stuck import GAVE_UP, patience

WAIT = (3, 6)
"""Seconds after which XLA:CPU warns of a collective that some devices never reach, and then gives up."""
CHILD = [
    "if len(sys.argv) == 1:  # what follows may abort, hang or eat memory: a child runs it, and has half a minute",
    "    flags = (",
    *(f'        " {flag}"' for flag in patience(WAIT).split()),
    "    )",
    '    environment = {**os.environ, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + flags}',
    '    command = [sys.executable, __file__, "child"]',
    "    try:",
    "        child = subprocess.run(command, env=environment, stderr=subprocess.PIPE, timeout=30, check=False)",
    "    except subprocess.TimeoutExpired:",
    '        print("does not finish within 30 s")',
    "        sys.exit(1)",
    f'    if b"{GAVE_UP.decode()}" in child.stderr:',
    f'        print("does not finish: devices wait for one another, and XLA gave up after {sum(WAIT)} s")',
    "    elif child.returncode:",
    '        sys.stderr.write(child.stderr.decode(errors="replace")[-2000:])',
    '        print(f"exit code: {child.returncode}")',
    "    sys.exit(1 if child.returncode else 0)",
    "resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30, 8 * 2**30))",
    "", "",
]  # fmt: skip
MEMORY = [
    "if len(sys.argv) == 1:  # memory that was never written may hold anything: a child for each of two contents",
    '    children = [subprocess.run([sys.executable, __file__, held], check=False) for held in ("lowest", "highest")]',
    "    sys.exit(1 if any(child.returncode for child in children) else 0)",
    "", "",
    "def empty(shape, dtype=np.float32, **_):",
    '    """Memory that nothing was written to."""',
    "    if dtype == bool:",
    '        return jnp.full(shape, sys.argv[1] == "highest")',
    "    info = jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype)",
    '    return jnp.full(shape, info.max if sys.argv[1] == "highest" else info.min, dtype)',
    "", "",
    "jax.lax.empty = jnp.empty = empty",
]  # fmt: skip
