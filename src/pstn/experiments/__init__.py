"""The experiments of the paper, each a declaration of data, models and settings, and what runs them."""
