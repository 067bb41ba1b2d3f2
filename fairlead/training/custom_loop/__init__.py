"""People who keep their own loop: a function of a context takes the place of model, data and loss."""
