"""Who gets which devices: a pure function from the state of the cluster to a round of decisions with reasons."""

from fairlead.scheduling.decide import decide
from fairlead.scheduling.explain import Explanation, Impossible, dry_run, explain, impossible

__all__ = ["Explanation", "Impossible", "decide", "dry_run", "explain", "impossible"]
