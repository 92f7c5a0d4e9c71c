"""Laws: what must hold of every implementation of a contract."""

from shardproof.properties.laws.agreement import check_agreement
from shardproof.properties.laws.communication import check_communication
from shardproof.properties.laws.error import check_error
from shardproof.properties.laws.gradient import check_gradient
from shardproof.properties.laws.type import check_type
from shardproof.properties.laws.value import check_value

__all__ = ["check_agreement", "check_communication", "check_error", "check_gradient", "check_type", "check_value"]
