"""Modules of users: taken apart into stages, and checked to do what a network is expected to do."""
