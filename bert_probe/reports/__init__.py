"""Write, read and verify view files and reports, which contain several views."""
