"""How what the market decides becomes what a live cluster can do now: free devices first, then room made by others."""
