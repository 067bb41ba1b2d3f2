"""The scheduling policy: a market for rigid and elastic gangs, device types, deadlines and tenants."""

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.policy import Market

__all__ = ["Market", "MarketConfig"]
