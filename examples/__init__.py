"""Programs to read and to run; none is part of the package."""
