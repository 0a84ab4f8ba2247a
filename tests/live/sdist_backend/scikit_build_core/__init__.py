"""In the place of the build backend of this name: answers pip from the metadata that a source archive contains.

``pip download`` asks the backend of an archive before it keeps the archive. The real one needs 100 MB of packages.
"""
