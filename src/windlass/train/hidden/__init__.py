"""Hidden."""
