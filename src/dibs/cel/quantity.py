"""The quantities of Kubernetes, as CEL values. The class itself is shared with the rest of dibs, which has one grammar.

`dibs.quantity` imports nothing; it is the only neighbour that this package has.
"""

from dibs.quantity import NANO, Quantity

__all__ = ["NANO", "Quantity"]
