"""Many models of one shape, trained together."""
