"""Published policies for comparison, implemented from their papers on Fairlead's policy interface."""
