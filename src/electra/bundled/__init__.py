"""The models that come with this package, a folder each, and the program that makes such a folder from a run.

`electra.interop.bundled` finds them by name; `python -m electra.bundled.build` writes them.
"""
