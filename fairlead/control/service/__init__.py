"""The control plane's verbs: what its doors may ask, each scoped to the one who asks."""

from fairlead.control.service.platform import Platform

__all__ = ["Platform"]
