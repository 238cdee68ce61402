"""``python -m bert_probe``, and what the script ``bert-probe`` calls."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, whose own import may be interrupted too."""
    try:
        from bert_probe.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("bert-probe: Interrupted.\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
