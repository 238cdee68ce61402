"""The Probes page: uploading the data, and the sections that draw the probes."""
