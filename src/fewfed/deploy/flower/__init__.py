"""The only modules that know Flower: a SuperLink, the coordinator's end of it, and a site's."""
