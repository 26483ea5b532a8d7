"""Run the command line as `python -m coord`."""

from __future__ import annotations

from coord.cli.main import main

if __name__ == "__main__":
    main()
