"""Where one group goes."""
