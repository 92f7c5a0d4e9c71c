"""The laws that must hold of every implementation of a contract."""

from shardproof.properties.laws.agreement import AGREEMENT
from shardproof.properties.laws.communication import COMMUNICATION, OVERLAP
from shardproof.properties.laws.forward import ERROR, TYPE, VALUE
from shardproof.properties.laws.gradient import GRADIENT
from shardproof.properties.laws.law import Law

LAWS: dict[str, Law] = {law.name: law for law in (VALUE, GRADIENT, TYPE, ERROR, COMMUNICATION, OVERLAP, AGREEMENT)}
"""Every law by its name, in the order in which they are checked of a case."""

__all__ = ["LAWS", "Law"]
