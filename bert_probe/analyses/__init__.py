"""One file each: what is asked, the answer, its table."""
