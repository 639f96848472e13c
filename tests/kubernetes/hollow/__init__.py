"""Hollow nodes: they stand in for kubelets, so that pods on a real API server live and end without a container runtime.

In mode "simulate" a pod ends after a given time, on thousands of nodes; in mode "exec" its containers are processes of this
machine, with folders for volumes. What `nodes.HollowNodes` does not do as a kubelet does is said where it is done.
"""
