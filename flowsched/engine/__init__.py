"""One step of the whole: what happened goes in, rows and orders come out. Pure."""
