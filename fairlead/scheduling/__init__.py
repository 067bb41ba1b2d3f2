"""Who gets which devices: a pure function from the state of the cluster to a round of decisions with reasons."""
