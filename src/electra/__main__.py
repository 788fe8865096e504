"""`python -m electra`, and the program `electra`."""

from electra.stopping import listen
from electra.train.interrupt import end_with_parent


def main() -> None:
    """Run the command line of this process. Importing it takes a moment, in which signals are heard already."""
    listen()
    end_with_parent()
    from electra.cli import main as run

    run(prog_name="electra")


if __name__ == "__main__":
    main()
