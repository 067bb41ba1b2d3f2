"""The control plane: the store, the reconcile loop, and the only writer of truth."""
