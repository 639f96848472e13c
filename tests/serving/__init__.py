"""`flowsched serve` as a user starts it: processes, sockets, files and accounts of this machine."""
