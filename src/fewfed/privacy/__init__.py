"""What leaves a site: said, recorded, attacked, bounded. Reads declarations, packets and roles, never method names."""
