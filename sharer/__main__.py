"""`python -m sharer` is `sharer`."""

from sharer.cli import main

if __name__ == "__main__":
    main()
