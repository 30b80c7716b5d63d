"""The documentation site: its pages, those that are made from the code, and what is checked of the result."""
