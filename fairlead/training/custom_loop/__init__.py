"""Custom training loops: a user's function of a context takes the place of model, data and loss."""
