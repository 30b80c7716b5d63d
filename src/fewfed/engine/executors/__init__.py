"""Ways to run the clients of a phase, one a folder, each with its own options."""
