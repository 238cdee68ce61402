"""Every question as JSON, for programs: what it is asked of, its body, its answer as bytes."""
