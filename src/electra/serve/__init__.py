"""A model on a page of this machine: a JSON API, and a page that uses it."""
