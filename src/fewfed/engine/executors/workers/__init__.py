"""One single-threaded process a core."""
