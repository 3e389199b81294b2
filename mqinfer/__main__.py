"""Run the `mqinfer` command with `python -m mqinfer`."""

from mqinfer.cli import main

if __name__ == "__main__":
    main()
