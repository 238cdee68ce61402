"""One file each: how the rows of a format are read, one after another, whatever the file's size."""
