"""Laws: what must hold of every implementation of a contract, on which cases, and what it is that breaks one."""
