"""Response models of the API, shown by SDK, CLI and web page."""
