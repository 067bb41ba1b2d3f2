"""Decides which jobs get which devices: a pure function from a state to decisions with reasons."""

from fairlead.scheduling.decide import decide
from fairlead.scheduling.explain import CanNeverRun, can_never_run, dry_run, explain
from fairlead.scheduling.reasons import Explanation

__all__ = ["CanNeverRun", "Explanation", "can_never_run", "decide", "dry_run", "explain"]
