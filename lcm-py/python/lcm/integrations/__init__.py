"""Integrations with service frameworks. Importing one raises ``ModuleNotFoundError`` if its framework is missing."""
