"""`python -m electra`, and the program `electra`."""

from electra.stopping import listen


def main() -> None:
    """Run the command line of this process. Importing it takes a moment, in which signals are heard already."""
    listen()
    from electra.cli import main as run

    run(prog_name="electra")


if __name__ == "__main__":
    main()
