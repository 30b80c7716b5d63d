"""Runs as one page that opens anywhere: what it says (`contents`), how it looks (`render`), its files (`write`)."""
