"""Write, read and verify view files (one view each) and reports (several views)."""
