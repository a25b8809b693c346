"""The simulator, the checkers and the drills: what tries to break a cluster, and what judges it."""
