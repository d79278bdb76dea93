"""Content by digest: packs, indexes, large objects, stored trees."""
