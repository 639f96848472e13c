"""The contract with executors, which run pods: nodes, pods and their constraints as values, and the protocol of an executor. Pure.

An executor (`cluster.local`, `cluster.kubernetes`) imports this package and nothing of the scheduler.
"""
