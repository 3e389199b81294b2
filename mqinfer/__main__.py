"""`python -m mqinfer` is the `mqinfer` command."""

from mqinfer.cli import main

if __name__ == "__main__":
    main()
