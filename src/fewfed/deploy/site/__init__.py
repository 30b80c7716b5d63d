"""What runs at a site: its rows, its state on disk, its policy, and the daemon that answers the coordinator."""
