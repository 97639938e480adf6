"""Adapters for the frameworks that services are built with. Each needs its framework, and says so if it is missing."""
