"""The HTTP API around questions and answers of `bert_probe.api`: who may ask, addresses, what is counted."""
