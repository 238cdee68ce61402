"""View files, and reports of several views: write, read and verify them."""
