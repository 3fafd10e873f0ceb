"""CRIU: where a working one is, bringing one, proving that it works, starting it, and explaining what it says."""
