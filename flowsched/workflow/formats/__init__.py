"""Other people's documents as ours, and ours as theirs: pure mappings, one module each."""
