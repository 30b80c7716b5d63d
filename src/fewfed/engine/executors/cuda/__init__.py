"""The executor for one GPU: local steps are recorded as graphs and replayed, for single clients or for stacks."""
