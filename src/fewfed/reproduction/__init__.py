"""The papers' tables and figures as files: which runs they are made of, and what the papers print for them."""
