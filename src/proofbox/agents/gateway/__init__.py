"""The model gateway: the way from a box to the model, with the key outside the box."""
