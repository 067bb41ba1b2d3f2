"""The reconcile loop: takes in events, decides, and carries every gang to the state that was decided."""
