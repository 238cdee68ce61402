"""``python -m bert_probe``."""

from bert_probe.cli.main import main

if __name__ == "__main__":
    main()
