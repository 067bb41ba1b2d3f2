"""Parameter servers: every rank serves a part of the model and computes at its own pace, within a bound (D4)."""
