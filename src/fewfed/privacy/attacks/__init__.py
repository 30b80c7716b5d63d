"""Attacks on what a run really sent, one a file. An attack reads packets and roles, never method names."""
