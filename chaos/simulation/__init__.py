"""Whole nodes on virtual time, in one process, everything drawn from one seed."""
