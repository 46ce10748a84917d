"""`python -m kleash.cli`."""

from kleash.cli import main

main()
