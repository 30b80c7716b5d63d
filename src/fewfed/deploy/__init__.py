"""Federations of real sites: a coordinator, a daemon at each site, and Flower between them."""
