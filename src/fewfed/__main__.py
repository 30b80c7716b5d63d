"""`python -m fewfed`."""

from fewfed.cli import main

main()
