"""One file per version of the store's schema; migrate.HEAD names the newest."""
