"""One process of the cluster: configuration, and the other rooms built into a node."""
