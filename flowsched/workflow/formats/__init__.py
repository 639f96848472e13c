"""Other people's documents: pure mappings."""
