"""One file a format: html, markdown, json, terminal."""
