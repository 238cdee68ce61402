"""Answer questions over HTTP and as agent tools: request bodies, JSON Schemas and response formats."""
