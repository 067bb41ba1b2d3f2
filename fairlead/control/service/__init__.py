"""The control plane's operations, scoped to the caller. API, CLI and SDK call them."""

from fairlead.control.service.platform import Platform

__all__ = ["Platform"]
