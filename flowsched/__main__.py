"""`flowsched`, and `python -m flowsched`."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from flowsched.cli.commands import app

    app(prog_name="flowsched")


if __name__ == "__main__":
    main()
