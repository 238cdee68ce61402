"""The web server for the pages: routes, headers, allowed hosts, uploads, downloads and sessions."""
