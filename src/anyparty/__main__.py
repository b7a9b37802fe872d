"""``python -m anyparty``: the command line."""

from anyparty.cli import main

if __name__ == "__main__":
    main()
