"""`python -m electra`."""

from electra.cli import main

if __name__ == "__main__":
    main(prog_name="electra")
