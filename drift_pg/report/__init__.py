"""The report on an adapter: one HTML file for people who decide, with charts and no script (extra `report`)."""
