"""The web server around the pages: routes, headers, allowed hosts, uploads, downloads and sessions."""
