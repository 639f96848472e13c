"""One step of the whole: events go in, rows and orders come out. Pure."""
