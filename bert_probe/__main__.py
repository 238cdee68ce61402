"""Entry point for ``python -m bert_probe`` and the script ``bert-probe``."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; exit without a traceback if Ctrl+C interrupts the slow imports."""
    try:
        from bert_probe.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("bert-probe: Interrupted.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
