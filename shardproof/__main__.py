"""`python -m shardproof`: the command `shardproof`."""

from shardproof.command import main

main(prog_name="shardproof")
