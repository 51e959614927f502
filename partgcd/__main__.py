"""``python -m partgcd`` is the console script."""

from partgcd.cli.main import main

if __name__ == "__main__":
    main()
