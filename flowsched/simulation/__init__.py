"""The same core on a virtual clock."""
