"""Real implementations of the ports, one folder for each system that they adapt."""
