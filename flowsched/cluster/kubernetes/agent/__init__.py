"""The node agent: owner of a node's cache folder, and the only part of flowsched that touches the node's disk.

It runs as root over folders that users' programs have written to, so two modules carry what the others rely on:
`runner.safe_paths` (no path and no link leads out of a folder) and `orders` (a pod says nothing that flowsched has not signed).
"""
