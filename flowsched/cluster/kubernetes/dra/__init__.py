"""Dynamic resource allocation: the devices of nodes, and claims on them."""
