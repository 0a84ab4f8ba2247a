"""A model cut into stages: `split` at cuts, `partition` by regions and annotations."""
