"""An instance as a small machine of this computer."""
