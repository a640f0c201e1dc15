"""A node without hardware: fakes that speak the real protocols, for the demo, for planning and for tests."""
