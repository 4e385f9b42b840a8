"""Kubernetes' CEL functions on quantities and versions, and the two value types."""

from dibs.cel.quantity import Quantity
from dibs.cel.semver import Semver

__all__ = ["Quantity", "Semver"]
