"""One policy for rigid and elastic gangs, mixed devices, deadlines and tenants: jobs bid, prices clear."""

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.policy import Market

__all__ = ["Market", "MarketConfig"]
