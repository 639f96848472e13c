"""Real Kubernetes nodes on this machine (`make kube-node` builds what they run), and the tests that need them."""
