"""Processes on a Ray cluster, of this machine or of many."""
