"""One policy for rigid and elastic gangs, mixed devices, deadlines and tenants: jobs bid, prices clear."""

from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.policy import Market

__all__ = ["Dials", "Market"]
