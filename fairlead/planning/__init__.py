"""How a model is best run on given devices: profiles in; plans, their cost, memory and reasons out. Pure; no torch."""
