"""Readers: one small module for each layout of data on disk."""
