"""`python -m ldt`."""

from ldt.cli import main

if __name__ == "__main__":
    main()
