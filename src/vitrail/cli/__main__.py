"""python -m vitrail.cli"""

from vitrail.cli import main

if __name__ == "__main__":
    main()
