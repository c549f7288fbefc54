"""Starts training programs: as a cluster on this machine, and again after a preemption."""
