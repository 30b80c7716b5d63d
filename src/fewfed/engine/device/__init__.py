"""The executor for accelerators: whole local steps replayed as graphs, one client a stream or many stacked."""
