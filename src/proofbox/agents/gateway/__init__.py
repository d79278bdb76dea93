"""The model gateway: the path from a box to the model, with the key outside the box."""
