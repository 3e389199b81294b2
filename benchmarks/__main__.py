"""`python -m benchmarks`."""

from benchmarks.commands import main

main()
