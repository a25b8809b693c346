"""Benchmarks: each prints figures of one run, and ratios that hold on a noisy machine."""
