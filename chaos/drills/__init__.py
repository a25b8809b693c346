"""Drills: real nodes, real sockets, real disks, broken on purpose while clients are at work."""
