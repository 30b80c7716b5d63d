"""What runs at the coordinator: it asks sites, combines their answers and drives the round loop."""
