"""A page that follows runs while they go on."""
