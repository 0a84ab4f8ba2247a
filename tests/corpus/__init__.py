"""A corpus of small models as other tools make them, for the tests of what a model goes through here."""
