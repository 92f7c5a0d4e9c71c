"""Laws: what must hold of every implementation of a contract."""

from properties.laws.agreement import check_agreement
from properties.laws.communication import check_communication
from properties.laws.error import check_error
from properties.laws.gradient import check_gradient
from properties.laws.type import check_type
from properties.laws.value import check_value

__all__ = ["check_agreement", "check_communication", "check_error", "check_gradient", "check_type", "check_value"]
