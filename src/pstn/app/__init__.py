"""The page: three networks read what a visitor draws, and show where they looked and how sure they are."""
